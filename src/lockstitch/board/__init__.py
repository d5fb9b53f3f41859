"""How a launcher and its workers talk while a job's workers come and go: the board on which each
worker finds its place.

    messages  what is said, over a `link.line`
    client    the worker's end
    server    the launcher's end
    muster    who gets which place, and when the ranks meet anew: a table; no I/O, no time
    slots     where workers may run: which slots there are, and which are left empty

Nothing here needs torch, which the launcher does without.
"""

from lockstitch.board.client import BoardClient
from lockstitch.board.messages import Over, Place, Ready, Update, UpdateKind, Void
from lockstitch.board.muster import Muster, MusterOptions
from lockstitch.board.server import BoardServer

__all__ = [
    "BoardClient",
    "BoardServer",
    "Muster",
    "MusterOptions",
    "Place",
    "Ready",
    "Update",
    "UpdateKind",
    "Void",
    "Over",
]
