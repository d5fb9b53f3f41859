"""No rank waits on a processor that it shares with others while another one has fewer of them.

Ranks that wait look, yield, and look again; where all are quick nobody ever sleeps. What the kernel
sees are processes that always want to run and have always just run, and it may leave all of them on
one processor: four ranks have been seen to share one of two for a second, in which everything takes
twice the time. So each rank says now and then where it waits. Where its processor has at least two
ranks more than another one, the last of its ranks moves there.

- It only moves: what it may run on is the same afterwards, and the kernel may move it again.
- Ranks that sleep do not count.
- Where another processor has no rank at all, something else may be busy there, and to share it with
  that would be worse. So one moves only to what has been idle for half of the time between two
  looks; if it was not, one looks again later and later.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lockstitch.processors import IdleWatch, Processors, yielding_group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


# A look takes some µs. Ranks that come out of work of their own may share a processor at once, and
# may not wait for more than a few operations before they go back to it.
_LOOK_SECONDS: Final = 200e-6
_LEAST_SECONDS: Final = 10e-3
# Of the word that says where a rank waits, what is above says with whom it can share a processor.
_GROUP_SHIFT: Final = 32
_PLACE_MASK: Final = (1 << _GROUP_SHIFT) - 1


class Spreading:
    """One rank's part in it. `places` are words in shared memory, one for each rank: 0, or on which
    processor it waits, from 1, and its `group`, by default its `yielding_group`; `sleepers` those
    of `memory.doorbell`. Called by whoever drives."""

    def __init__(
        self,
        rank: int,
        places: memoryview,
        sleepers: memoryview,
        processors: Processors | None = None,
        now: Callable[[], float] = time.perf_counter,
        group: int | None = None,
    ) -> None:
        self._rank = rank
        self._places = places
        self._sleepers = sleepers
        self._processors = processors or Processors()
        self._now = now
        self._next_look = 0.0
        self._not_before = 0.0
        self._group = (yielding_group() if group is None else group) << _GROUP_SHIFT
        self.yields_in_vain = False
        """Whether there are more ranks than processors, some of which this one cannot yield to."""
        self._idle = IdleWatch(self._processors)

    def note_wait(self) -> None:
        """This thread is going to wait. Now and then it looks where it is, and moves."""
        now = self._now()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            try:
                self._look(now)
            except OSError:  # it is forbidden here, or not found out
                self._not_before = float("inf")

    def leave(self) -> None:
        """This rank waits no more."""
        self._places[self._rank] = 0

    def _look(self, now: float) -> None:
        processors = self._processors
        here = processors.current()
        self._places[self._rank] = self._group | here + 1
        if now < self._not_before:
            return
        allowed = processors.allowed()
        self.yields_in_vain = len(allowed) < len(self._places) and any(
            place & ~_PLACE_MASK != self._group for place in self._places if place
        )
        target, others = self._better(here, allowed)
        if target is None:
            self._idle.forget()
            return
        if others or self._idle.find((target,), now) is not None:
            self._not_before = now + _LEAST_SECONDS
            processors.move_to(target)
            self._places[self._rank] = self._group | processors.current() + 1

    def _better(self, here: int, allowed: Collection[int]) -> tuple[int | None, int]:
        """Returns to which processor this rank should move, if to any, and how many are there."""
        counts = dict.fromkeys(allowed, 0)
        last = self._rank
        for rank, word in enumerate(self._places):
            place = word & _PLACE_MASK
            if place and not self._sleepers[rank] and place - 1 in counts:
                counts[place - 1] += 1
                if place - 1 == here:
                    last = rank
        fewest = min(counts.values(), default=0)
        if last != self._rank or counts.get(here, 0) < fewest + 2:
            return None, 0
        least = [processor for processor, count in counts.items() if count == fewest]
        return least[self._rank % len(least)], fewest
