"""Process sets: which ranks take part in an operation. Every set negotiates for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstitch.collectives.requests import GLOBAL_SET

FIRST_PAIR: Final = 1 << 10
"""The id from which on sets of two ranks have ids that both know without a word (`pair_id`)."""

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class ProcessSet:
    """Some ranks of a session, ascending; `id` 0 is the set of all."""

    id: int
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    def includes(self, rank: int) -> bool:
        """Returns whether a global rank belongs to it."""
        return rank in self.ranks

    def position(self, rank: int) -> int:
        """The rank inside the set of a global rank; `ValueError` where it is none of the set's."""
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} is not in process set {self.id}, {list(self.ranks)}")
        return self.ranks.index(rank)


def pair_id(one: int, other: int) -> int:
    """Returns the id of the set of two ranks for what they send to each other."""
    lower, higher = sorted((one, other))
    return FIRST_PAIR + higher * (higher - 1) // 2 + lower


class ProcessSets:
    """The sets that a session knows."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._sets = {GLOBAL_SET: ProcessSet(GLOBAL_SET, tuple(range(size)))}

    def __getitem__(self, set_id: int) -> ProcessSet:
        try:
            return self._sets[set_id]
        except KeyError:
            raise ValueError(
                f"there is no process set {set_id}; known are {sorted(self._sets)}"
            ) from None

    def all(self) -> list[ProcessSet]:
        """The sets, in the order of their ids."""
        return [self._sets[set_id] for set_id in sorted(self._sets)]

    def has(self, set_id: int) -> bool:
        """Returns whether it is known."""
        return set_id in self._sets

    def checked(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """The ranks of a new set, ascending. Raises `ValueError` when one is none of the session's
        or named twice, when there is none, or when such a set exists already."""
        given = list(ranks)
        chosen = tuple(sorted(set(given)))
        if len(chosen) != len(given):
            raise ValueError(f"a rank is named twice in {given}")
        if not chosen or chosen[0] < 0 or chosen[-1] >= self._size:
            raise ValueError(f"ranks {given} do not lie within a session of size {self._size}")
        for known in self._sets.values():
            if known.ranks == chosen:
                raise ValueError(f"process set {known.id} has the ranks {list(chosen)} already")
        return chosen

    def add(self, process_set: ProcessSet) -> None:
        """Makes a set known."""
        self._sets[process_set.id] = process_set

    def remove(self, set_id: int) -> None:
        """Forgets a set; `ValueError` for the set of all, or one that is not known."""
        if set_id == GLOBAL_SET:
            raise ValueError("the process set of all ranks cannot be removed")
        del self._sets[self[set_id].id]
