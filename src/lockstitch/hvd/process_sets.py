"""Process sets: operations among some of the ranks, while others go their own way."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import torch

from lockstitch.collectives import GLOBAL_SET
from lockstitch.hvd.communicators import Communicator
from lockstitch.hvd.job import current_session
from lockstitch.modes import in_plain_modes

if TYPE_CHECKING:
    from collections.abc import Iterable


_log = logging.getLogger(__name__)


class ProcessSet:
    """Some of the ranks: a list of them, or a communicator of mpi4py, whose ranks they then are (a
    communicator that has been split makes a set of each part). It can be used once `init` or
    `add_process_set` has made it known."""

    process_set_id: int | None = None
    """None while it is not known to the job."""

    def __init__(self, ranks_or_comm: Iterable[int] | Communicator) -> None:
        self.mpi_comm = ranks_or_comm if isinstance(ranks_or_comm, Communicator) else None
        given = () if isinstance(ranks_or_comm, Communicator) else ranks_or_comm
        self._ranks = tuple(sorted(given))
        if any(not isinstance(rank, int) for rank in self._ranks):
            raise ValueError(f"the ranks of a process set must be numbers, not {self._ranks}")

    def __repr__(self) -> str:
        return f"<ProcessSet {self.process_set_id} of ranks {list(self._ranks)}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return (self.process_set_id, self._ranks) == (other.process_set_id, other._ranks)

    __hash__ = object.__hash__

    @property
    def ranks(self) -> list[int]:
        """The global ranks, ascending; those of a communicator once the set is known."""
        return list(self._ranks)

    def included(self) -> bool:
        """Whether this process belongs to it."""
        return current_session().rank in self.ranks

    def size(self) -> int:
        """How many ranks it has."""
        id_of(self)
        return len(self.ranks)

    def rank(self) -> int:
        """This process's rank inside the set; `ValueError` where it does not belong to it."""
        session = current_session()
        return session.process_set(id_of(self)).position(session.rank)


class _GlobalProcessSet(ProcessSet):
    """All ranks of whatever job there is."""

    process_set_id = GLOBAL_SET

    def __init__(self) -> None:
        super().__init__(())

    def __repr__(self) -> str:
        return "<ProcessSet 0 of all ranks>"

    @property
    def ranks(self) -> list[int]:
        return list(range(current_session().size))


global_process_set: Final[ProcessSet] = _GlobalProcessSet()


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Makes a set known to the job. All ranks of the job call it, with the same ranks, in the same
    order as other changes of sets. Raises `ValueError` for ranks that do not exist or that make a
    set already."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.mpi_comm is not None:
        _add_parts(process_set, process_set.mpi_comm)
    else:
        process_set.process_set_id = current_session().add_process_set(process_set.ranks).id
    _log.debug("%r is known now", process_set)
    return process_set


def add_first_sets(process_sets: Iterable[ProcessSet | Iterable[int]]) -> None:
    """Makes the sets known that `init` was given. One that has the same ranks as one before it, or
    all ranks, is passed over, and stays unknown."""
    for each in process_sets:
        process_set = each if isinstance(each, ProcessSet) else ProcessSet(each)
        if process_set.mpi_comm is not None or not _is_known(process_set.ranks):
            before = _ids()
            add_process_set(process_set)
            if process_set.process_set_id in before:
                process_set.process_set_id = None


@in_plain_modes
def _add_parts(process_set: ProcessSet, comm: Communicator) -> None:
    """Each rank has its own part of a communicator that was split: makes a set of each part."""
    session = current_session()
    ranks = sorted(comm.allgather(session.rank))
    own = torch.zeros(1, session.size, dtype=torch.bool)
    own[0, ranks] = True
    everybodys = session.wait(session.allgather(own))
    parts = dict.fromkeys(tuple(row.nonzero().flatten().tolist()) for row in everybodys)
    for part in parts:
        if not _is_known(part):
            session.add_process_set(part)
    process_set._ranks = tuple(ranks)
    process_set.process_set_id = _ids_by_ranks()[tuple(ranks)]


def _is_known(ranks: Iterable[int]) -> bool:
    return tuple(ranks) in _ids_by_ranks()


def _ids() -> set[int]:
    return set(_ids_by_ranks().values())


def _ids_by_ranks() -> dict[tuple[int, ...], int]:
    return {tuple(each.ranks): each.id for each in current_session().process_sets()}


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a set, on all ranks. False where there is nothing to end: the set of all ranks cannot be
    removed, nor one that is not known."""
    set_id = process_set.process_set_id
    if set_id in (None, GLOBAL_SET):
        return False
    current_session().remove_process_set(set_id)
    _log.debug("%r is no longer known", process_set)
    process_set.process_set_id = None
    return True


def id_of(process_set: ProcessSet) -> int:
    """The set's number in this job; `ValueError` where it is not known to it, `TypeError` for what
    is no set."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"process_set is a hvd.ProcessSet, not {process_set!r}: "
            "hvd.add_process_set([0, 1]), called on all ranks, makes one and returns it"
        )
    set_id = process_set.process_set_id
    if set_id is None:
        raise ValueError(f"{process_set!r} is not known: give it to init or add_process_set first")
    return set_id
