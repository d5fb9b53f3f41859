"""Forked children let go of their parent's sockets.

A child made by `os.fork` (a DataLoader worker, say) inherits every descriptor. As long as it holds
one end of a connection, the other end does not see the parent's death. So everything here that owns
a descriptor registers itself, and a child's first act is to close its copies, without a word on the
wire: the connections themselves remain the parent's.

What a child shares with others through its parent's memory is noted by the parent, before.
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


class Forkable(Protocol):
    """Something that must know of forks before they happen."""

    def before_fork(self) -> None:
        """This process is about to get a child, or has just got one; takes no lock."""
        ...


_inherited: WeakSet[Abandonable] = WeakSet()
_told: WeakSet[Forkable] = WeakSet()


def abandon_in_child(owner: Abandonable) -> None:
    """Has `owner` abandoned in every child that this process forks from now on."""
    _inherited.add(owner)


def tell_before_fork(owner: Forkable) -> None:
    """Has `owner` told of every child that this process forks from now on."""
    _told.add(owner)


def _abandon_all() -> None:
    for owner in list(_inherited):
        owner.abandon()


def _tell_all() -> None:
    for owner in list(_told):
        owner.before_fork()


if hasattr(os, "register_at_fork"):
    # Once more behind it, for what another thread has received in the meantime.
    os.register_at_fork(before=_tell_all, after_in_parent=_tell_all, after_in_child=_abandon_all)
