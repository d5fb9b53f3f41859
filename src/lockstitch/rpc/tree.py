"""The tree along which the workers of a barrier talk, so that nobody has many to talk to.

The members in the order of their names are numbered from 0; number 0 leads. The children of number
n are the `ARITY` numbers from n · ARITY + 1 on:

                0
        ┌───┬───┼───┐
        1   2   3   4
     ┌──┼ …
     5  6 …

So a barrier of N workers takes N - 1 messages up and N - 1 down, none has more than ARITY + 1
neighbours, and the deepest is log N away from the leader. Five workers or fewer are a star.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.ids import WorkerId

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
        number = names.index(name)
        first = number * ARITY + 1
        above = [names[(number - 1) // ARITY]] if number else []
        return cls(
            {each: members[each] for each in above},
            {each: members[each] for each in names[first : first + ARITY]},
        )
