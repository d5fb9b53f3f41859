"""The groups of this process: a program that ends without `destroy_process_group` says goodbye all
the same, so that the other ranks do not take it for dead."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING, Protocol

from lockstitch.inquiry import INQUIRY

if TYPE_CHECKING:
    from weakref import WeakSet


class Group(Protocol):
    """What is ended, and asked."""

    def shutdown(self) -> None:
        """Ends it; harmless when repeated."""
        ...

    def describe_waits(self) -> list[str]:
        """A line for each operation under way."""
        ...


class OpenGroups:
    """The groups that are not shut down."""

    def __init__(self) -> None:
        self._groups: WeakSet[Group] = weakref.WeakSet()
        atexit.register(self.shutdown)
        INQUIRY.waits.append(self._describe_waits)
        os.register_at_fork(after_in_child=self.forget)

    def add(self, group: Group) -> None:
        """A new one."""
        self._groups.add(group)

    def remove(self, group: Group) -> None:
        """It is shut down."""
        self._groups.discard(group)

    def shutdown(self) -> None:
        """Ends all of them."""
        for group in list(self._groups):
            group.shutdown()

    def forget(self) -> None:
        """A forked child (of a `DataLoader`, say) is no rank."""
        self._groups = weakref.WeakSet()

    def _describe_waits(self) -> list[str] | None:
        groups = list(self._groups)
        return [line for group in groups for line in group.describe_waits()] if groups else None


OPEN_GROUPS = OpenGroups()
