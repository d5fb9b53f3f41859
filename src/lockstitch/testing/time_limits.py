"""Time limits for what should happen soon, which count only time in which it could have happened.

A machine may be stopped and go on later: a laptop that sleeps, a virtual machine that is paused.
Its clock has then leapt by seconds or minutes in which nothing ran, and a deadline would be over
before anybody had a chance to meet it. So whoever waits looks again and again, and the time between
two looks counts for one second at most.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_TURN_SECONDS = 1.0


class ActiveTimeLimit:
    """A time limit of `seconds`, as counted from look to look; `now` is for tests."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._left = seconds
        self._now = now
        self._last = now()

    def __repr__(self) -> str:
        return f"<ActiveTimeLimit · {self._left:.3f} s left>"

    def is_over(self) -> bool:
        """Whether the time is over; to be asked after each look."""
        now = self._now()
        self._left -= min(now - self._last, _LONGEST_TURN_SECONDS)
        self._last = now
        return self._left < 0
