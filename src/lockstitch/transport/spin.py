"""Waiting for a peer that answers at once, without going to sleep.

Falling asleep and being woken costs 30 µs and more on a virtual machine, several times what a quick
peer needs to answer: 10 µs on a fast machine, up to 100 on a slow one. So before a receiver blocks
it may look again and again for at most 150 µs, and lets others have the CPU between two looks. That
pays only where an answer is near and the CPU is free, hence the rules:

- a look that took over 50 µs means that somebody else wants the GIL or the CPU: stop at once;
- whoever has spun in vain three times in a row loses the right to it, and may try again once after
  1 ms, then 2, 4 … 64; the first success restores it;
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

_LONGEST_SPIN_SECONDS = 150e-6
_LONGEST_LOOK_SECONDS = 50e-6
_TOLERATED_FAILURES = 3
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
        self._failures = 0
        self._pause_seconds = _SHORTEST_PAUSE_SECONDS
        self._paused_until = 0.0

    def __repr__(self) -> str:
        state = "paused" if self._failures >= _TOLERATED_FAILURES else "ready"
        return f"<Spinner · {state} · {self._failures} failures in a row>"

    def receive(self, connection: Connection, view: memoryview, counts: list[int]) -> bool:
        """Tries to receive as `Connection.receive_into` does; True when something was appended.

        False means that nothing came, or that spinning is not allowed now: block instead. Raises
        `ConnectionError` when the peer vanished.
        """
        start = self._now()
        if start < self._paused_until or start < _TURN.taken_until:
            return False
        if not isinstance(connection, StreamConnection) or connection.is_own_process:
            return False
        _TURN.taken_until = start + _LONGEST_SPIN_SECONDS
        try:
            got_some = self._spin(connection, view, counts, start)
        finally:
            _TURN.taken_until = 0.0
        if not got_some:
            self._fail()
        elif self._failures:
            self._failures = 0
            self._pause_seconds = _SHORTEST_PAUSE_SECONDS
        return got_some

    def _spin(
        self, connection: Connection, view: memoryview, counts: list[int], start: float
    ) -> bool:
        receive_into, now, yield_cpu = connection.receive_into, self._now, self._yield_cpu
        deadline = start + _LONGEST_SPIN_SECONDS
        before = start
        while True:
            try:
                receive_into(view, counts, 0)
            except BlockingIOError:
                yield_cpu()
            else:
                return True
            after = now()
            if after > deadline or after - before > _LONGEST_LOOK_SECONDS:
                return False
            before = after

    def _fail(self) -> None:
        self._failures += 1
        if self._failures >= _TOLERATED_FAILURES:
            self._paused_until = self._now() + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
