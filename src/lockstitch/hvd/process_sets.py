"""Process sets: operations among some of the ranks, while others go their own way."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.attach.logs import ProcessLog
from lockstitch.collectives import GLOBAL_SET
from lockstitch.hvd.communicators import Communicator
from lockstitch.hvd.job import current_session, has_session
from lockstitch.modes import in_plain_modes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.collectives import Session

_log = ProcessLog(__name__)


class ProcessSet:
    """Some of the ranks: a list of them, or a communicator of mpi4py, whose ranks they then are (a
    communicator that has been split makes a set of each part). It can be used once `init` or
    `add_process_set` has made it known."""

    process_set_id: int | None = None
    """None while it is not known to the job."""
    _session: weakref.ref[Session] | None = None
    """Of the job to which it is known."""

    def __init__(self, ranks_or_comm: Iterable[int] | Communicator) -> None:
        self.mpi_comm = ranks_or_comm if isinstance(ranks_or_comm, Communicator) else None
        given = () if isinstance(ranks_or_comm, Communicator) else ranks_or_comm
        self._ranks = tuple(sorted(given))
        if any(not isinstance(rank, int) for rank in self._ranks):
            raise ValueError(f"the ranks of a process set must be numbers, not {self._ranks}")

    def __repr__(self) -> str:
        return f"<ProcessSet {self.process_set_id} of ranks {list(self._ranks)}>"

    def __str__(self) -> str:
        """As Horovod has it."""
        known = f"process_set_id={self.process_set_id}, ranks={self.ranks}"
        return f"ProcessSet({known}, mpi_comm={self.mpi_comm})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return (self.process_set_id, self._ranks) == (other.process_set_id, other._ranks)

    __hash__ = object.__hash__

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_session"}

    @property
    def ranks(self) -> list[int]:
        """The global ranks, ascending; those of a communicator once the set is known."""
        return list(self._ranks)

    def included(self) -> bool | None:
        """Returns whether this process belongs to it; None while its ranks are not known."""
        rank = current_session().rank
        is_open = self.mpi_comm is not None and self.process_set_id is None
        return None if is_open else rank in self.ranks

    def size(self) -> int | None:
        """Returns how many ranks it has; None while it is not known to the job."""
        return None if self.process_set_id is None else size_of(self)

    def rank(self) -> int | None:
        """This process's rank inside the set; None while that is not known to the job. Raises
        `ValueError` where the process does not belong to it."""
        if self.process_set_id is None:
            return None
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
        """The global ranks, ascending; None before `init`."""
        return list(range(current_session().size)) if has_session() else []


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
        _note(process_set, current_session().add_process_set(process_set.ranks).id)
    _log.debug("%r is known now", process_set)
    return process_set


def add_first_sets(process_sets: Iterable[ProcessSet | Iterable[int]]) -> None:
    """Makes the sets known that `init` was given, in that order. Raises `ValueError`, on all ranks,
    where one of them has the ranks of another, or all ranks."""
    given = [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in process_sets]
    for number, process_set in enumerate(given):
        if process_set.mpi_comm is not None:
            is_new = _add_parts(process_set, process_set.mpi_comm)
        elif is_new := not _is_known(process_set.ranks):
            add_process_set(process_set)
        if not is_new:
            process_set.process_set_id = None
            raise ValueError(
                f"entry number {number} of process_sets is a duplicate: {process_set}. Give each "
                "set once; that of all ranks is hvd.global_process_set"
            )


@in_plain_modes
def _add_parts(process_set: ProcessSet, comm: Communicator) -> bool:
    """Each rank has its own part of a communicator that was split: makes a set of each part.
    Whether all of them are new."""
    session = current_session()
    ranks = sorted(comm.allgather(session.rank))
    own = torch.zeros(1, session.size, dtype=torch.bool)
    own[0, ranks] = True
    everybodys = session.wait(session.allgather(own))
    parts = dict.fromkeys(tuple(row.nonzero().flatten().tolist()) for row in everybodys)
    new = [part for part in parts if not _is_known(part)]
    for part in new:
        session.add_process_set(part)
    process_set._ranks = tuple(ranks)
    _note(process_set, ids_by_ranks()[process_set._ranks])
    return len(new) == len(parts)


def _note(process_set: ProcessSet, set_id: int) -> None:
    """Notes that a set is known under that number, to this job and no later one."""
    process_set.process_set_id = set_id
    process_set._session = weakref.ref(current_session())


def _is_known(ranks: Iterable[int]) -> bool:
    return tuple(ranks) in ids_by_ranks()


def ids_by_ranks() -> dict[tuple[int, ...], int]:
    """All sets of the job."""
    return {tuple(each.ranks): each.id for each in current_session().process_sets()}


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a set, on all ranks. False where there is nothing to end: the set of all ranks cannot be
    removed, nor one that is not known."""
    set_id = process_set.process_set_id
    if set_id in (None, GLOBAL_SET):
        return False
    session = current_session()
    process_set.process_set_id = None
    if set_id not in ids_by_ranks().values():  # by another name
        return False
    session.remove_process_set(set_id)
    _log.debug("%r is no longer known", process_set)
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
    if (
        set_id
        and process_set._session is not None
        and process_set._session() is not current_session()
    ):
        raise ValueError(
            f"{process_set!r} belongs to an earlier job: after shutdown and init, give it to init "
            "or add_process_set again"
        )
    return set_id


def size_of(process_set: ProcessSet) -> int:
    """Returns how many ranks a set has; raises what `id_of` does."""
    return current_session().process_set(id_of(process_set)).size
