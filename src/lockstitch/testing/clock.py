"""Time that belongs to the test: it stands still until `advance` moves it.

A wait on this clock ends when what it waits for is set, or when `advance` has moved the time beyond
its timeout, and never because real time has passed. `advance` returns only when every wait whose
time is over has noticed, so that what follows in the test finds them gone.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.clock import Waiter

# The clock cannot see into what is waited for, so a wait looks at the time this often. Only how
# fast a test runs depends on it.
_LOOK_SECONDS = 0.001
_PATIENCE_SECONDS = 10.0


class ManualClock:
    """A `Clock` that a test advances; it starts at `start` seconds."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._changed = threading.Condition()
        self._deadlines: list[float] = []

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now} s · {len(self._deadlines)} waiting>"

    def now(self) -> float:
        """Returns the time in seconds, as advanced so far."""
        return self._now

    def wait(self, waiter: Waiter, timeout_seconds: float | None) -> bool:
        """Blocks until `waiter` is set (True) or the time has been advanced enough (False)."""
        return self.wait_until(
            waiter, None if timeout_seconds is None else self._now + timeout_seconds
        )

    def wait_until(self, waiter: Waiter, deadline: float | None) -> bool:
        """Blocks until `waiter` is set (True) or the time has been advanced to `deadline`."""
        if deadline is None:
            return waiter.wait()
        self._begin(deadline)
        try:
            while self._now < deadline:
                if waiter.wait(_LOOK_SECONDS):
                    return True
            return waiter.wait(0)
        finally:
            self._end(deadline)

    def advance(self, seconds: float) -> None:
        """Moves the time by `seconds`; returns when all waits that are over by then have ended."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        with self._changed:
            self._now += seconds
            now = self._now
            self._await(lambda: not any(deadline <= now for deadline in self._deadlines))

    def wait_until_waiting(self, count: int = 1) -> None:
        """Blocks until at least `count` threads wait on this clock with a timeout."""
        with self._changed:
            self._await(lambda: len(self._deadlines) >= count)

    def _begin(self, deadline: float) -> None:
        with self._changed:
            self._deadlines.append(deadline)
            self._changed.notify_all()

    def _end(self, deadline: float) -> None:
        with self._changed:
            self._deadlines.remove(deadline)
            self._changed.notify_all()

    def _await(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(condition, _PATIENCE_SECONDS):
            raise TimeoutError(f"{self!r}: nothing happened for {_PATIENCE_SECONDS} s")
