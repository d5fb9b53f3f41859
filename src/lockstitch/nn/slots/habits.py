"""How long passes of slots usually take: what is short is not worth handing over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT_SECONDS: Final = 200e-6
"""What takes less is not worth another thread."""
_MEASURED_ONE_IN: Final = 8


class Habit:
    """How long work of one kind usually takes, in seconds. Asking for the time of the CPU takes
    microseconds: it is done for every eighth piece of work."""

    def __init__(self) -> None:
        self._usual_seconds: float | None = None
        self._count = 0

    @property
    def is_short(self) -> bool:
        return self._usual_seconds is not None and self._usual_seconds < SHORT_SECONDS

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
        """So long a piece of work has taken."""
        usual = self._usual_seconds
        self._usual_seconds = seconds if usual is None else usual + (seconds - usual) / 4
