"""By which of its connections a node of the tree reaches a rank, and who has gone. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lockstitch.collectives.c10d.messages import Via

if TYPE_CHECKING:
    from lockstitch.collectives.c10d.messages import Message, Plain
    from lockstitch.collectives.c10d.tree import Place


class Addressed(NamedTuple):
    """A message, and the rank to which it goes."""

    to: int
    message: Message


class Routes:
    """The ways from the node at a place to the ranks below it."""

    def __init__(self, place: Place) -> None:
        self._ways = {rank: branch for branch, ranks in place.branches.items() for rank in ranks}
        self._speakers = frozenset(place.speakers)
        self._gone: set[int] = set()
        self._left: set[int] = set()

    def to(self, rank: int, message: Plain) -> Addressed:
        """Returns the message for a rank as it is told to whoever leads there. A speaker takes for
        the ranks for which it speaks what does not say that it is for its own."""
        branch = self._ways.get(rank, rank)
        is_told_itself = branch == rank and branch not in self._speakers
        return Addressed(branch, message if is_told_itself else Via(rank, message))

    @staticmethod
    def to_source(source: int, message: Plain) -> Addressed:
        """Returns the message for a rank, or for all for whom a speaker speaks."""
        return Addressed(source if source >= 0 else -1 - source, message)

    def note_left(self, rank: int) -> None:
        """A rank has shut down."""
        self._left.add(rank)
        self._gone.add(rank)

    def note_gone(self, rank: int) -> None:
        """A rank is lost."""
        self._gone.add(rank)

    def has_gone(self, rank: int) -> bool:
        """Whether it is lost or has shut down."""
        return rank in self._gone

    def has_left(self, rank: int) -> bool:
        """Whether it has shut down."""
        return rank in self._left
