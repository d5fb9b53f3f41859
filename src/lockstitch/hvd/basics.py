"""The beginning and the end of a job, who is where, and what is built in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import torch

from lockstitch.attach.logs import ProcessLog
from lockstitch.attach.presence import PRESENCE
from lockstitch.collectives import open_session
from lockstitch.hvd.communicators import Communicator
from lockstitch.hvd.environment import LauncherSettings, options_of
from lockstitch.hvd.job import PROCESS, active, current_session, has_session
from lockstitch.hvd.logs import begin_logs, end_logs
from lockstitch.hvd.process_sets import ProcessSet, add_first_sets, ids_by_ranks
from lockstitch.hvd.timeline import begin_timeline_of, end_timeline
from lockstitch.hvd.worlds import WORLDS
from lockstitch.inquiry import tell_of_crashes
from lockstitch.launcher_link.process import JOB
from lockstitch.modes import in_plain_modes
from lockstitch.observe.wait_reports import listen
from lockstitch.termination import TERMINATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives import Session, Stall, Topology

_log = ProcessLog(__name__)


@in_plain_modes
def init(
    comm: Sequence[int] | Communicator | None = None,
    process_sets: Sequence[ProcessSet] | Literal["dynamic"] | None = None,
) -> None:
    """Meets the other ranks that the launcher has started; without a launcher this process is the
    only one. Harmless when repeated; after `shutdown` it begins anew, on all ranks.

    `comm`: the ranks of the launcher that make up the job, numbered anew by their places in the
    list (each process names the list it is in); or a communicator of mpi4py, whose ranks they then
    are; None: all ranks. `process_sets`: sets to be made at once, the same on all ranks; more may
    be added at any time, so `"dynamic"` says nothing new.

    Raises `ValueError` for a `comm` that does not fit, for a set that repeats another or has all
    ranks, and for variables of the environment that make no sense, `RuntimeError` where ranks do
    not come in time. Before `init` and after `shutdown` all that needs the ranks raises
    `ValueError`.
    """
    if has_session():
        return
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f'process_sets is a list of sets or "dynamic", not {process_sets!r}')
        process_sets = None
    listen()
    PRESENCE.show()
    tell_of_crashes()
    TERMINATION.install()
    session = _open(comm)
    session.observers.stall = _report_stall
    try:
        begin_logs(os.environ, session.rank)
        _log.info("rank %d of %d, over %s", session.rank, session.size, session.backend_name)
        begin_timeline_of(session, os.environ, is_first_world=JOB.is_first_world())
        with active(session):
            add_first_sets(process_sets or ())
    except BaseException:
        session.shutdown()
        end_timeline(session)
        end_logs()
        raise
    PROCESS.session = session
    JOB.take_part(shutdown)


def _open(comm: Sequence[int] | Communicator | None) -> Session:
    if isinstance(comm, Communicator):
        rank, size, store = PROCESS.meeting_of(comm)
        return open_session(rank, size, store, options_of(os.environ))
    link = JOB.client()
    if link is not None:
        if comm:
            raise ValueError("where workers come and go all of them are the job: leave out comm")
        return WORLDS.open(link)
    settings = LauncherSettings.read(os.environ)
    members = list(comm or range(settings.size))
    if len(set(members)) != len(members) or not set(members) <= set(range(settings.size)):
        raise ValueError(
            f"comm must be different ranks from 0 to {settings.size - 1}, not {comm!r}"
        )
    if settings.rank not in members:
        raise ValueError(f"this process is rank {settings.rank}, which is not in comm={members}")
    return open_session(
        settings.rank, settings.size, settings.store, settings.options, members=members
    )


def shutdown() -> None:
    """Ends this rank's part; harmless when repeated. Also done when the process ends."""
    session = PROCESS.session
    PROCESS.shutdown()
    if session is not None:
        end_timeline(session)
        _log.info("rank %d has shut down", session.rank)
        end_logs()


def is_initialized() -> bool:
    """Returns whether it is after `init` and before `shutdown`."""
    return has_session()


def size() -> int:
    """The number of ranks."""
    return current_session().size


def rank() -> int:
    """This process's rank, from 0 to `size() - 1`."""
    return current_session().rank


def local_size() -> int:
    """The number of ranks on this host."""
    return _topology().local_size


def local_rank() -> int:
    """This process's rank among those of its host."""
    return _topology().local_rank


def cross_size() -> int:
    """Returns the number of hosts that have a rank with this local rank."""
    return _topology().cross_size


def cross_rank() -> int:
    """This process's rank among those of the same local rank, one on each host."""
    return _topology().cross_rank


def is_homogeneous() -> bool:
    """Returns whether each host has the same number of ranks."""
    return _topology().is_homogeneous


def mpi_threads_supported() -> bool:
    """Returns False: MPI is not used."""
    current_session()
    return False


def mpi_enabled() -> bool:
    """Returns False: MPI is not used."""
    return False


def mpi_built() -> bool:
    """Returns False: MPI is not used."""
    return False


def gloo_enabled() -> bool:
    """Returns whether ranks of several hosts can use Gloo."""
    return gloo_built()


def gloo_built() -> bool:
    """Returns whether torch has been built with Gloo."""
    return torch.distributed.is_gloo_available()


def nccl_built() -> int:
    """Nonzero if torch has been built with NCCL."""
    return int(torch.distributed.is_nccl_available())


def ddl_built() -> bool:
    """Returns False: DDL is not used."""
    return False


def ccl_built() -> bool:
    """Returns False: oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """Returns whether torch has been built with CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Returns whether torch has been built with ROCm."""
    return torch.version.hip is not None


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Returns the ranks of each process set, under the name by which programs of the original look
    at its inside."""
    return {set_id: list(ranks) for ranks, set_id in ids_by_ranks().items()}


def _topology() -> Topology:
    return current_session().topology


def _report_stall(stall: Stall) -> None:
    whom = f"ranks {list(stall.missing_ranks)}" if stall.missing_ranks else "other ranks"
    _log.warning(
        "%s %r has waited for %.0f s: %s have not submitted it. Do all ranks run the same "
        "operations? (process set %d)",
        stall.kind.value,
        stall.name,
        stall.waited_seconds,
        whom,
        stall.process_set,
    )
