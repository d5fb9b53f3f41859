"""Sleeping until another rank has something to tell, waking who sleeps, and seeing who has died.

A rank sleeps on its eventfd, to which others write where they find that it sleeps (by the protocol
of `memory.doorbell`), and on the pidfds of the other ranks, which tell of their ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING

from lockstitch.memory.doorbell import Doorbell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives.shared_memory.introduction import SharedDescriptors


class Wakeups:
    """One rank's sleep, and how it wakes the others. Only one thread sleeps at a time. `sleepers`
    are words in shared memory, one for each rank; the descriptors are taken over."""

    def __init__(self, rank: int, known: SharedDescriptors, sleepers: memoryview) -> None:
        self._rank = rank
        self._known = known
        self._doorbell = Doorbell(sleepers)
        self._poll = select.poll()
        self._poll.register(known.eventfds[rank], select.POLLIN)
        self._pidfds = {fd: each for each, fd in enumerate(known.pidfds) if each != rank}
        for descriptor in self._pidfds:
            self._poll.register(descriptor, select.POLLIN)
        self._is_closed = False
        self._closing = threading.Lock()
        """Held while a descriptor is written to, or all are given back: a number that has been
        given back may be another file's."""

    @property
    def is_asleep(self) -> bool:
        """Whether this rank sleeps, or is about to."""
        return self._doorbell.is_asleep(self._rank)

    def sleep_unless(
        self, has_come: Callable[[], bool], timeout_seconds: float
    ) -> list[int] | None:
        """Looks once more by `has_come()`, and sleeps if that finds nothing: until somebody wakes
        this rank, the time is over, or a rank dies. Returns the ranks that have died, or None where
        there was no need to sleep."""
        return self._doorbell.sleep_unless(
            self._rank, has_come, lambda: self._sleep(timeout_seconds)
        )

    def _sleep(self, timeout_seconds: float) -> list[int]:
        dead = []
        for descriptor, _ in self._poll.poll(timeout_seconds * 1e3):
            if descriptor in self._pidfds:
                dead.append(self._pidfds[descriptor])
            else:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(descriptor)
        return dead

    def is_watched(self, rank: int) -> bool:
        """Whether the end of that rank's process would count as its death."""
        return rank in self._pidfds.values()

    def forget(self, rank: int) -> None:
        """Takes note that this rank has said it leaves: the end of its process is no death."""
        for descriptor, each in list(self._pidfds.items()):
            if each == rank:
                del self._pidfds[descriptor]
                self._poll.unregister(descriptor)

    def wake(self, ranks: Sequence[int]) -> None:
        """Something was written for `ranks`: wakes those of them that sleep."""
        for rank in self._doorbell.sleepers(ranks):
            self._signal(rank)

    def wake_own(self) -> None:
        """Wakes the thread of this process that sleeps."""
        self._signal(self._rank)

    def close(self) -> None:
        """Gives the descriptors back; nobody may sleep any more. Harmless when repeated."""
        with self._closing:
            self.abandon()

    def abandon(self) -> None:
        """Closes a forked child's copies."""
        self._is_closed = True
        self._known.close()

    def _signal(self, rank: int) -> None:
        with self._closing:
            if not self._is_closed:
                with contextlib.suppress(BlockingIOError):  # nobody has looked 2**64 times
                    os.eventfd_write(self._known.eventfds[rank], 1)
