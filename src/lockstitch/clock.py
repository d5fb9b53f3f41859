"""Time as an argument: whatever waits or measures takes a `Clock`, so that tests may own time."""

from __future__ import annotations

import time
from typing import Final, Protocol

UNSET_TIMEOUT: Final = -1.0
"""Stands for the timeout that is in force when a call is made that was given none."""


class Clock(Protocol):
    """A monotonic clock that can also be waited on."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never goes backwards."""
        ...

    def wait(self, waiter: Waiter, timeout_seconds: float | None) -> bool:
        """Blocks until `waiter` is set (True) or the time is over (False)."""
        ...

    def wait_until(self, waiter: Waiter, deadline: float | None) -> bool:
        """Blocks until `waiter` is set (True) or the clock shows `deadline` (False). Better than
        `wait` where the deadline is known: time may pass between asking for it and waiting."""
        ...


class Waiter(Protocol):
    """What a clock can wait for: `threading.Event` fits."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def set(self) -> None: ...


def earliest(*moments: float | None) -> float | None:
    """Returns the earliest of some moments, or the shortest of some waits; None: never."""
    return min((moment for moment in moments if moment is not None), default=None)


def seconds_until(moment: float | None, clock: Clock) -> float | None:
    """Returns how long it is until a moment; 0 where it is over, None for never."""
    return None if moment is None else max(0.0, moment - clock.now())


class SystemClock:
    """The machine's own monotonic clock."""

    now = staticmethod(time.monotonic)

    def wait(self, waiter: Waiter, timeout_seconds: float | None) -> bool:
        return waiter.wait(timeout_seconds)

    def wait_until(self, waiter: Waiter, deadline: float | None) -> bool:
        return waiter.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))


SYSTEM_CLOCK = SystemClock()
