"""How a launcher and its workers talk while a job's workers come and go: each worker gets its rank
in this way.

    messages          what is said, over a `link.line`
    client            the worker's end
    process           the one link of a process, and who listens to it
    server            the launcher's end
    conductor         carries out what the rank coordinator decides, wherever workers are started
    rank_coordinator  who gets which rank, and when the ranks meet anew: a table; no I/O, no time
    worker_book       which workers do what, counted as it changes; no I/O
    slots             where workers may run: which slots there are, and which are left empty
    fixed_ranks       ranks where workers do not come and go, as they are told; no I/O
    values            the job's store, which outlives every worker: a table; no I/O

Nothing here needs torch, which the launcher does without.
"""

from lockstitch.launcher_link.client import LauncherClient
from lockstitch.launcher_link.messages import Over, RankAssignment, Ready, Update, UpdateKind, Void
from lockstitch.launcher_link.rank_coordinator import CoordinatorOptions, RankCoordinator
from lockstitch.launcher_link.server import LauncherServer

__all__ = [
    "LauncherClient",
    "LauncherServer",
    "RankCoordinator",
    "CoordinatorOptions",
    "RankAssignment",
    "Ready",
    "Update",
    "UpdateKind",
    "Void",
    "Over",
]
