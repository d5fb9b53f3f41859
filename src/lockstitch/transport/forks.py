"""Forked children let go of their parent's sockets.

A child made by `os.fork` (a DataLoader worker, say) inherits every descriptor. As long as it holds
one end of a connection, the other end does not see the parent's death. So everything here that owns
a descriptor registers itself, and a child's first act is to close its copies, without a word on the
wire: the connections themselves remain the parent's.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Abandonable(Protocol):
    """Something that owns descriptors."""

    def abandon(self) -> None:
        """Closes this process's copies; takes no lock, since its holder may not exist here."""
        ...


_inherited: WeakSet[Abandonable] = WeakSet()


def abandon_in_child(owner: Abandonable) -> None:
    """Has `owner` abandoned in every child that this process forks from now on."""
    _inherited.add(owner)


def _abandon_all() -> None:
    for owner in list(_inherited):
        owner.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
