"""Sleeping until another rank has something to tell, waking who sleeps, and seeing who has died.

Who is about to sleep says so in the segment (*sleepers*), passes a fence, looks once more, and then
sleeps on its eventfd. Who has written something passes a fence and then reads who sleeps. So at
least one of the two sees the other.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.shared_memory.introduction import SharedDescriptors
    from lockstitch.fences import Fence


class Wakeups:
    """One rank's eventfd, and those of the others. Only one thread sleeps at a time."""

    def __init__(
        self, rank: int, known: SharedDescriptors, sleepers: memoryview, fence: Fence
    ) -> None:
        self._rank = rank
        self._known = known
        self._sleepers = sleepers
        self.fence = fence
        self._poll = select.poll()
        self._poll.register(known.eventfds[rank], select.POLLIN)
        self._pidfds = {fd: each for each, fd in enumerate(known.pidfds) if each != rank}
        for descriptor in self._pidfds:
            self._poll.register(descriptor, select.POLLIN)
        self._is_closed = False

    @property
    def is_asleep(self) -> bool:
        """Whether this rank sleeps, or is about to."""
        return bool(self._sleepers[self._rank])

    def announce_sleep(self) -> None:
        """Before the last look: from now on others wake this rank."""
        self._sleepers[self._rank] = 1
        self.fence()

    def announce_awake(self) -> None:
        """Awake, by whatever."""
        self._sleepers[self._rank] = 0

    def sleep(self, timeout_seconds: float) -> list[int]:
        """Until somebody wakes this rank, the time is over, or a rank dies; returns the ranks that
        died."""
        dead = []
        for descriptor, _ in self._poll.poll(timeout_seconds * 1e3):
            if descriptor in self._pidfds:
                dead.append(self._pidfds[descriptor])
            else:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(descriptor)
        return dead

    def is_watched(self, rank: int) -> bool:
        """Whether the rank's death would be one."""
        return rank in self._pidfds.values()

    def forget(self, rank: int) -> None:
        """This rank has said goodbye: its end is no death."""
        for descriptor, each in list(self._pidfds.items()):
            if each == rank:
                del self._pidfds[descriptor]
                self._poll.unregister(descriptor)

    def wake(self, ranks: Sequence[int]) -> None:
        """Wakes those of `ranks` that sleep."""
        self.fence()
        sleepers = self._sleepers
        for rank in ranks:
            if sleepers[rank] and not self._is_closed:
                _signal(self._known.eventfds[rank])

    def wake_own(self) -> None:
        """Wakes the thread of this process that sleeps."""
        if not self._is_closed:
            _signal(self._known.eventfds[self._rank])

    def close(self) -> None:
        """Gives the descriptors back; nobody may sleep any more. Harmless when repeated."""
        self._is_closed = True
        self._known.close()


def _signal(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):  # nobody has looked 2**64 times
        os.eventfd_write(descriptor, 1)
