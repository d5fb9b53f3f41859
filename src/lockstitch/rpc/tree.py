"""The tree along which the workers of a barrier talk, so that nobody has many to talk to.

The members in the order of their names are numbered from 0, or by their ranks, where all of a fixed
world meet: then nobody needs to know others than its neighbours. Number 0 leads. The children of
number n are the `ARITY` numbers from n · ARITY + 1 on:

                0
        ┌───┬───┼───┐
        1   2   3   4
     ┌──┼ …
     5  6 …

So a barrier of N workers takes N - 1 messages up and N - 1 down, none has more than ARITY + 1
neighbours, and the deepest is log N away from the leader. Five workers or fewer are a star.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lockstitch.ids import WorkerId, WorkerInfo

ARITY: Final = 4


@dataclass(frozen=True)
class TreeNode:
    """The neighbours that one worker has in the tree, by name."""

    parent: dict[str, WorkerId]
    """Empty for the leader."""
    children: dict[str, WorkerId]

    @classmethod
    def of(cls, members: Mapping[str, WorkerId], name: str) -> TreeNode:
        """Makes the node of the worker `name` in the tree of `members`. Raises `ValueError` if it
        is none of them."""
        names = sorted(members)
        if name not in members:
            raise ValueError(f"{name!r} is not among the workers {names}")
        return cls._at(names.index(name), len(names), lambda n: (names[n], members[names[n]]))

    @classmethod
    def of_ranks(cls, size: int, rank: int, info_of: Callable[[int], WorkerInfo]) -> TreeNode:
        """Makes the node of a rank in the tree of a world of so many."""

        def member(number: int) -> tuple[str, WorkerId]:
            info = info_of(number)
            return info.name, info.worker

        return cls._at(rank, size, member)

    @classmethod
    def _at(cls, number: int, size: int, member: Callable[[int], tuple[str, WorkerId]]) -> TreeNode:
        first = number * ARITY + 1
        below = range(first, min(first + ARITY, size))
        above = [(number - 1) // ARITY] if number else []
        return cls(dict(map(member, above)), dict(map(member, below)))


@dataclass(frozen=True)
class Attendance:
    """Who meets at a barrier: what they are called together, alike on all of them, and the
    neighbours of this worker."""

    everybody: str
    node: TreeNode

    @classmethod
    def of(cls, members: Mapping[str, WorkerId], name: str) -> Attendance:
        """Of the worker `name` among `members`. Raises `ValueError` if it is none of them."""
        # Not the names themselves: every message bears this.
        names = ",".join(sorted(members)).encode()
        digest = hashlib.blake2b(names, digest_size=8).hexdigest()
        return cls(f"{len(members)} workers {digest}", TreeNode.of(members, name))

    @classmethod
    def of_world(cls, size: int, rank: int, info_of: Callable[[int], WorkerInfo]) -> Attendance:
        """Of a rank in a world of so many, none of whom comes or goes alone."""
        return cls(f"all {size} ranks", TreeNode.of_ranks(size, rank, info_of))
