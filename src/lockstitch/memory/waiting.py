"""How long waits and work of one kind have taken of late: what is done about the next one follows.

Each user brings its own limits; the estimate is the same: a moving average, a quarter of it new.

Those who look again and again before they sleep share this estimate and the protocol of falling
asleep (`doorbell`), but each has a loop of its own, for what one look is differs. A forked slot
(`mailbox`) reads one word of memory and never yields the CPU. A receiver of calls
(`transport.spin`) asks a socket, watches a ring in between, and gives the CPU away by rules about
who shares it. A rank (`collectives.shared_memory.driving`) does the work that it finds, and yields
after each look. One loop for all would have to call a function for each look, which makes a look at
memory half as long again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MEASURED_ONE_IN: Final = 8


class DurationEstimate:
    """How long waits of one kind usually take, in seconds; what takes longer than `most_seconds`
    is all the same, by default what nobody spins for."""

    __slots__ = ("_most_seconds", "usual_seconds")

    def __init__(self, most_seconds: float = 2e-3, usual_seconds: float = 0.0) -> None:
        self._most_seconds = most_seconds
        self.usual_seconds = usual_seconds

    def note(self, seconds: float) -> None:
        """One of them has ended after so long."""
        most = self._most_seconds
        self.usual_seconds += ((seconds if seconds < most else most) - self.usual_seconds) / 4


class WorkEstimate:
    """How long work of one kind usually keeps the processor. Asking for the time of the CPU takes
    microseconds: it is done for every eighth piece of work."""

    def __init__(self) -> None:
        self._estimate: DurationEstimate | None = None
        self._count = 0

    def is_below(self, seconds: float) -> bool:
        """Whether it usually takes less than that; not before it was measured."""
        estimate = self._estimate
        return estimate is not None and estimate.usual_seconds < seconds

    def measure(self, work: Callable[[], Any]) -> Any:
        """Does the work, and learns."""
        if not self.is_due():
            return work()
        start = time.thread_time()
        result = work()
        self.learn(time.thread_time() - start)
        return result

    def is_due(self) -> bool:
        """Whether the next piece of work is to be measured; counts it."""
        self._count += 1
        return self._count % _MEASURED_ONE_IN == 1

    def learn(self, seconds: float) -> None:
        """Takes note that a piece of work has taken so long."""
        if self._estimate is None:
            self._estimate = DurationEstimate(float("inf"), seconds)
        else:
            self._estimate.note(seconds)
