"""Process sets: operations among some of the ranks, while others go their own way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.collectives import GLOBAL_SET
from lockstitch.hvd.job import current_session

if TYPE_CHECKING:
    from collections.abc import Iterable


class ProcessSet:
    """Some of the ranks. It can be used once `init` or `add_process_set` has made it known."""

    process_set_id: int | None = None
    """None while it is not known to the job."""

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self._ranks = tuple(sorted(ranks_or_comm))

    def __repr__(self) -> str:
        return f"<ProcessSet {self.process_set_id} of ranks {list(self._ranks)}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return (self.process_set_id, self._ranks) == (other.process_set_id, other._ranks)

    __hash__ = object.__hash__

    @property
    def ranks(self) -> list[int]:
        """The global ranks, ascending."""
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
    added = current_session().add_process_set(process_set.ranks)
    process_set.process_set_id = added.id
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a set, on all ranks. False where there is nothing to end: the set of all ranks cannot be
    removed, nor one that is not known."""
    set_id = process_set.process_set_id
    if set_id in (None, GLOBAL_SET):
        return False
    current_session().remove_process_set(set_id)
    process_set.process_set_id = None
    return True


def id_of(process_set: ProcessSet) -> int:
    """The set's number in this job; `ValueError` where it is not known to it."""
    set_id = process_set.process_set_id
    if set_id is None:
        raise ValueError(f"{process_set!r} is not known: give it to init or add_process_set first")
    return set_id
