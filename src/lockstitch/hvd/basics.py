"""The beginning and the end of a job, who is where, and what is built in."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Literal

import torch

from lockstitch.collectives import open_session
from lockstitch.hvd.environment import Place
from lockstitch.hvd.job import PROCESS, active, current_session, has_session
from lockstitch.hvd.process_sets import ProcessSet, add_process_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives import Stall, Topology

_log = logging.getLogger(__name__)


def init(
    comm: Sequence[int] | None = None,
    process_sets: Sequence[ProcessSet] | Literal["dynamic"] | None = None,
) -> None:
    """Meets the other ranks that the launcher has started; without a launcher this process is the
    only one. Harmless when repeated; after `shutdown` it begins anew, on all ranks.

    `comm`: None, or the list of all ranks. `process_sets`: sets to be made at once, the same on all
    ranks; more may be added at any time, so `"dynamic"` says nothing new.
    """
    if has_session():
        return
    place = Place.read(os.environ)
    if comm is not None and list(comm) not in ([], list(range(place.size))):
        raise ValueError(
            f"comm must be None or all ranks from 0 to {place.size - 1}, not {comm!r}; "
            "a process set makes a group of some of them"
        )
    session = open_session(place.rank, place.size, place.store, place.options)
    session.observers.stall = _report_stall
    try:
        with active(session):
            for each in () if process_sets in (None, "dynamic") else process_sets:
                add_process_set(each)  # type: ignore[arg-type]
    except BaseException:
        session.shutdown()
        raise
    PROCESS.session = session


def shutdown() -> None:
    """Ends this rank's part; harmless when repeated. Also done when the process ends."""
    PROCESS.shutdown()


def is_initialized() -> bool:
    """Whether it is after `init` and before `shutdown`."""
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
    """On how many hosts there is a rank with this local rank."""
    return _topology().cross_size


def cross_rank() -> int:
    """This process's rank among those of the same local rank, one on each host."""
    return _topology().cross_rank


def is_homogeneous() -> bool:
    """Whether each host has the same number of ranks."""
    return _topology().is_homogeneous


def mpi_threads_supported() -> bool:
    """False: MPI is not used."""
    current_session()
    return False


def mpi_enabled() -> bool:
    """False: MPI is not used."""
    return False


def mpi_built() -> bool:
    """False: MPI is not used."""
    return False


def gloo_enabled() -> bool:
    """Whether ranks of several hosts can use Gloo."""
    return gloo_built()


def gloo_built() -> bool:
    """Whether torch has been built with Gloo."""
    return torch.distributed.is_gloo_available()


def nccl_built() -> int:
    """Nonzero if torch has been built with NCCL."""
    return int(torch.distributed.is_nccl_available())


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """Whether torch has been built with CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch has been built with ROCm."""
    return torch.version.hip is not None


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
