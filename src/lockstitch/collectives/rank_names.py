"""How the ranks of a session are called in what people read.

A session numbers its ranks from 0. Where its ranks are some of a larger world, as those of a
sub-group of torch.distributed, people know them by the numbers that they have there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.attach.values import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class RankNames:
    """See the module. Without `numbers` each rank is called by its own."""

    def __init__(self, numbers: Sequence[int] = ()) -> None:
        self._numbers = tuple(numbers)
        self._place: Callable[[int], str] = lambda _rank: ""
        self.here = ""
        """Where this rank is; empty where that is not known."""

    def __repr__(self) -> str:
        return f"<RankNames {self._numbers or 'as numbered'}>"

    def learn_places(self, place: Callable[[int], str], here: str) -> None:
        """Says where each rank is (`host a`), when all have met, and where this one."""
        self._place, self.here = place, here

    def number(self, rank: int) -> int:
        """Returns the number by which people know a rank; any other number as it is."""
        return self._numbers[rank] if 0 <= rank < len(self._numbers) else rank

    def in_words(self, ranks: Sequence[int]) -> str:
        """`rank 3`, or `ranks 1, 2`; many are cut short."""
        return ranks_in_words([self.number(rank) for rank in ranks])

    def one(self, rank: int) -> str:
        """`rank 3`."""
        return self.in_words((rank,))

    def place(self, rank: int) -> str:
        """Where a rank is; empty where that is not known. May have to be looked up."""
        return self._place(rank)
