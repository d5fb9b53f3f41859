"""The groups of this process: a program that ends without `destroy_process_group` says goodbye all
the same, so that the other ranks do not take it for dead. Who waits for this process is told what
it does instead."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from lockstitch.attach.sources import SOURCES
from lockstitch.c10d.flight_recorder import RECORDER
from lockstitch.c10d.reports import Watch
from lockstitch.inquiry import INQUIRY, line_of

if TYPE_CHECKING:
    from weakref import WeakSet

    from lockstitch.attach.values import GroupReport, Question
    from lockstitch.c10d.flight_recorder import GroupLabel


class Group(Protocol):
    """What is ended, and asked."""

    def shutdown(self) -> None:
        """Ends it; harmless when repeated."""
        ...

    def describe_waits(self) -> list[str]:
        """A line for each operation under way."""
        ...

    def report(self) -> None:
        """Says what this rank does, if others wait for it."""
        ...

    def told(self, question: Question) -> GroupReport:
        """What this rank of it tells somebody who looks on."""
        ...


class OpenGroups:
    """The groups that are not shut down."""

    def __init__(self) -> None:
        self._groups: WeakSet[Group] = weakref.WeakSet()
        self._watch = Watch(lambda: list(self._groups))
        atexit.register(self.shutdown)
        INQUIRY.waits.append(self._describe_waits)
        SOURCES.groups.append(self._told)
        os.register_at_fork(after_in_child=self.forget)

    def add(self, group: Group) -> None:
        """A new one."""
        self._groups.add(group)
        self._watch.begin()

    def remove(self, group: Group) -> None:
        """It is shut down."""
        self._groups.discard(group)
        if not self._groups:
            self._watch.end()

    def shutdown(self) -> None:
        """Ends all of them."""
        for group in list(self._groups):
            group.shutdown()

    def forget(self) -> None:
        """A forked child (of a `DataLoader`, say) is no rank."""
        self._groups = weakref.WeakSet()
        self._watch.forget()

    def what_this_process_does(self, group: GroupLabel) -> str:
        """What it waits for, which operation of the group was its last, and where its main thread
        is."""
        last = RECORDER.last_of(group)
        said = RECORDER.lines([last]) if last is not None else [f"not known, in {group}"]
        words = [f"rank {group.global_rank}: its last operation here is {said[0]}"]
        words += [line for line in self._describe_waits() or () if ", submitted " in line]
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        if main is not None:
            words.append(f"its main thread is at {line_of(main)}")
        return "; ".join(words)

    def _describe_waits(self) -> list[str] | None:
        groups = list(self._groups)
        return [line for group in groups for line in group.describe_waits()] if groups else None

    def _told(self, question: Question) -> list[GroupReport]:
        return [group.told(question) for group in list(self._groups)]


OPEN_GROUPS = OpenGroups()
