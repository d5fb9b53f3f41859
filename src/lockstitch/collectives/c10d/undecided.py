"""What the ranks that talk to one node have said and is not decided yet, each in its order: it is
said again where the node does not speak for them any more. No I/O here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lockstitch.collectives.c10d.messages import ANYTHING, Ask, Define, Join, Leave, Submit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lockstitch.collectives.c10d.messages import Plain

# Where among its numbers a rank's last word is kept.
_LAST_WORD = -(1 << 62)


class Undecided:
    """What some ranks have submitted, and that they have joined or left, until it is decided; and
    what their numbers mean."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._said: dict[int, dict[int, Submit | Join | Leave]] = {rank: {} for rank in ranks}
        """By rank: by number; joins have negative ones, the first the greatest."""
        self._joins = dict.fromkeys(self._said, 0)
        self._definitions: dict[tuple[int, int], Define] = {}
        """What a rank's number means, until that has been said again."""
        self._set_ranks: dict[int, tuple[int, ...]] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._said

    def __repr__(self) -> str:
        return f"<Undecided · {sum(map(len, self._said.values()))} of {len(self._said)} ranks>"

    def note(self, rank: int, message: Plain) -> None:
        """Takes in what a rank says."""
        if isinstance(message, Submit):
            self._said[rank][message.number] = message
        elif isinstance(message, Define):
            if message.ranks:
                self._set_ranks.setdefault(message.set_id, message.ranks)
            ranks = self._set_ranks.get(message.set_id, ())
            self._definitions[rank, message.number] = dataclasses.replace(message, ranks=ranks)
        elif isinstance(message, Join):
            self._joins[rank] -= 1
            self._said[rank][self._joins[rank]] = message
        elif isinstance(message, Leave):
            self._said[rank][_LAST_WORD] = message

    def settle(self, rank: int, number: int) -> None:
        """A submission is decided."""
        self._said[rank].pop(number, None)

    def settle_joins(self) -> None:
        """All have joined: the first join of each rank is decided."""
        for said in self._said.values():
            joins = (number for number in said if _LAST_WORD < number < 0)
            first = max(joins, default=None)
            if first is not None:
                del said[first]

    def all(self) -> Iterator[tuple[int, Plain]]:
        """Returns all of it as it is to be said again, rank by rank and in the order of each."""
        for rank, said in self._said.items():
            for message in said.values():
                for again in self.again(rank, message):
                    yield rank, again

    def again(self, rank: int, message: Plain) -> Iterator[Plain]:
        """Returns what to say for what a rank says from now on: what a number means goes before its
        first use, and is said no sooner."""
        if isinstance(message, Define):
            self.note(rank, message)
            return
        if isinstance(message, (Submit, Ask)) and message.number != ANYTHING:
            definition = self._definitions.pop((rank, message.number), None)
            if definition is not None:
                yield definition
        yield message
