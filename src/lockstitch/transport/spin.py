"""Waiting for a peer that answers at once, without going to sleep.

Falling asleep and being woken costs 30 µs and more on a virtual machine, several times what a quick
peer needs to answer, and whoever wakes up finds the caches cold. So before a receiver blocks it may
look again and again, and lets others have the CPU between two looks. That pays only where an answer
is near and the CPU is free, hence the rules:

- every wait is measured, those without spinning too, and one spins only where waits have been short
  of late, and no longer than three times as long as they were;
- a look that took over half a millisecond means that somebody else wants the GIL or the CPU: stop
  at once, and do not try again for 1 ms, then 2, 4 … 64; each success shortens that;
- one spinner per process at a time;
- never where both ends are in this process: the answer would need the GIL that spinning holds.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from lockstitch.transport.stream import StreamConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.transport.base import Connection

_SHORTEST_SPIN_SECONDS = 50e-6
_LONGEST_SPIN_SECONDS = 2e-3
_LONGEST_LOOK_SECONDS = 500e-6
# What counts as a short wait; what is longer than the last one is all the same.
_SHORT_SECONDS = 1e-3
_LONG_SECONDS = 2e-3
_SHORTEST_PAUSE_SECONDS = 1e-3
_LONGEST_PAUSE_SECONDS = 64e-3
_YIELD_CPU = getattr(os, "sched_yield", bool)


class _Turn:
    """Until when somebody in this process may be spinning.

    A time and not a lock: it passes by itself when an interrupt keeps the spinner from giving it
    back. Two threads that take it in the same instant do no harm, the slow look ends that.
    """

    __slots__ = ("taken_until",)

    def __init__(self) -> None:
        self.taken_until = 0.0


_TURN = _Turn()


class Spinner:
    """The right of one receiver to spin; have one for each connection.

    `now` (seconds) and `yield_cpu` are for tests.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        yield_cpu: Callable[[], object] = _YIELD_CPU,
    ) -> None:
        self._now = now
        self._yield_cpu = yield_cpu
        self._usual_seconds = 0.0
        self._waits_since = 0.0
        self._pause_seconds = _SHORTEST_PAUSE_SECONDS
        self._paused_until = 0.0

    def __repr__(self) -> str:
        return f"<Spinner · waits of {self._usual_seconds * 1e6:.0f} µs>"

    def receive(self, connection: Connection, view: memoryview, counts: list[int]) -> bool:
        """Tries to receive as `Connection.receive_into` does; True when something was appended.

        False means that nothing came, or that spinning is not allowed now: block instead, and tell
        by `note_arrival` when that is over. Raises `ConnectionError` when the peer vanished.
        """
        start = self._waits_since = self._now()
        usual = self._usual_seconds
        if usual > _SHORT_SECONDS or start < self._paused_until or start < _TURN.taken_until:
            return False
        if not isinstance(connection, StreamConnection) or connection.is_own_process:
            return False
        deadline = start + min(_SHORTEST_SPIN_SECONDS + 3 * usual, _LONGEST_SPIN_SECONDS)
        _TURN.taken_until = deadline
        try:
            if not self._spin(connection, view, counts, deadline):
                return False
        finally:
            _TURN.taken_until = 0.0
        self.note_arrival()
        if self._pause_seconds > _SHORTEST_PAUSE_SECONDS:
            self._pause_seconds /= 2
        return True

    def note_arrival(self) -> None:
        """What was waited for since the last `receive` has come."""
        since = self._waits_since
        if since:
            self._waits_since = 0.0
            wait = min(self._now() - since, _LONG_SECONDS)
            self._usual_seconds += (wait - self._usual_seconds) / 4

    def _spin(
        self, connection: Connection, view: memoryview, counts: list[int], deadline: float
    ) -> bool:
        receive_into, now, yield_cpu = connection.receive_into, self._now, self._yield_cpu
        before = self._waits_since
        while True:
            try:
                receive_into(view, counts, 0)
            except BlockingIOError:
                yield_cpu()
            else:
                return True
            after = now()
            if after - before > _LONGEST_LOOK_SECONDS:
                self._paused_until = after + self._pause_seconds
                self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
                return False
            if after > deadline:
                return False
            before = after
