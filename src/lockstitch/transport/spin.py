"""Waiting for a peer that answers at once, without going to sleep.

Falling asleep and being woken costs 30 µs and more on a virtual machine, several times what a quick
peer needs to answer, and whoever wakes up finds the caches cold. So before a receiver blocks it may
look again and again. That pays only where an answer is near and the CPU is free, hence the rules:

- every wait is measured, those without spinning too, each kind of wait apart (see
  `memory.waiting`); one spins only where waits of its kind have been short of late, and no longer
  than three times as long;
- a peer that has just sent something is awake, on a CPU of its own: while that is so, the CPU is
  kept, since two processes that yield to each other end up on the same one, and where others
  compute on it it would be lost for milliseconds. But only for about as long as such waits usually
  are: after that the peer may have lost its CPU, or share this one. A peer that may be asleep is
  offered the CPU between two looks from the start, for it may have to wake up on this one; so is
  everybody while this process itself has several things to do, or others have wanted the CPU for a
  moment of late (see `courtesy`);
- a look that took over half a millisecond means that somebody else wants the GIL or the CPU: stop
  at once, and do not try again for 1 ms, then 2, 4 … 64; each success shortens that;
- whoever spins looks now and then whether something else has come that this process should read,
  and stops then;
- one spinner per process at a time;
- who is bound to the CPU on which the peer waits does not spin (see `transport.placement`);
- never where both ends are in this process: the answer would need the GIL that spinning holds.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from lockstitch.memory.doorbell import ASLEEP, AWAKE
from lockstitch.memory.ring import SLEEPS
from lockstitch.memory.waiting import DurationEstimate
from lockstitch.transport.courtesy import LONG_YIELD_SECONDS, Courtesy
from lockstitch.transport.stream import StreamConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.transport.base import Connection
    from lockstitch.transport.placement import Placement

_SHORTEST_SPIN_SECONDS = 50e-6
_LONGEST_SPIN_SECONDS = 2e-3
_LONGEST_LOOK_SECONDS = 500e-6
# What counts as a short wait.
_SHORT_SECONDS = 1e-3
_SHORTEST_PAUSE_SECONDS = 1e-3
_LONGEST_PAUSE_SECONDS = 64e-3
# Who looks into a ring looks at the stream beside it, and lets others have the GIL, only so often.
_WATCH_SECONDS = 40e-6
# After so long without an answer: is something else to be read?
_CHECK_SECONDS = 10e-6
# Who has sent something so lately is taken to be awake still, and gets so long to answer before the
# CPU is offered to it.
_AWAKE_SECONDS = 200e-6
_LEAST_KEEP_SECONDS = 20e-6
_MOST_KEEP_SECONDS = 150e-6
_SHARING_SECONDS = 5e-3
# To ask where one is takes as long as a quick peer's answer takes to be read.
_PLACE_SECONDS = 1e-3
_YIELD_CPU = getattr(os, "sched_yield", bool)


class _Turn:
    """Until when somebody in this process may be spinning.

    A time and not a lock: it passes by itself when an interrupt keeps the spinner from giving it
    back. Two threads that take it in the same instant do no harm, the slow look ends that.
    """

    __slots__ = ("latest", "latest_since", "shares_until", "taken_until")

    def __init__(self) -> None:
        self.latest: object = None
        self.latest_since = 0.0
        """Who has received something last in this process, and since when nobody else has."""
        self.taken_until = 0.0
        self.shares_until = 0.0
        """Until when this process is taken to have other things to do too."""


_TURN = _Turn()
_COURTESY = Courtesy()


def _never() -> bool:
    return False


class Spinner:
    """The right of one receiver to spin; have one for each connection.

    `is_wanted` says whether this process has something else to read. `looks_on`: whoever has
    received something receives again before it sleeps, or asks `Connection.has_left_over`; then a
    ring may be used meanwhile too. `now` (seconds) and `yield_cpu` are for tests.
    """

    def __init__(
        self,
        is_wanted: Callable[[], bool] = _never,
        now: Callable[[], float] = time.perf_counter,
        yield_cpu: Callable[[], object] = _YIELD_CPU,
        *,
        looks_on: bool = False,
        placement: Placement | None = None,
    ) -> None:
        self._now = now
        self._yield_cpu = yield_cpu
        self._is_wanted = is_wanted
        self._looks_on = looks_on
        self._placement = placement
        self._place_at = 0.0
        self._estimate = DurationEstimate()
        self._waits_for = self._estimate
        self._waits_since = 0.0
        self._pause_seconds = _SHORTEST_PAUSE_SECONDS
        self._paused_until = 0.0
        self._awake_until = 0.0

    def __repr__(self) -> str:
        return f"<Spinner · waits of {self._waits_for.usual_seconds * 1e6:.0f} µs>"

    def receive(
        self,
        connection: Connection,
        view: memoryview,
        counts: list[int],
        estimate: DurationEstimate | None = None,
    ) -> bool:
        """Tries to receive as `Connection.receive_into` does; True when something was appended.

        `estimate`: of this kind of wait, where there are several. False means that nothing came, or
        that spinning is not allowed now: block instead, and tell by `note_arrival` when that is
        over. Raises `ConnectionError` when the peer vanished.
        """
        if estimate is None:
            estimate = self._estimate
        self._waits_for = estimate
        start = self._waits_since = self._now()
        usual = estimate.usual_seconds
        if not isinstance(connection, StreamConnection) or connection.is_own_process:
            return False
        if start >= self._place_at and self._placement is not None:
            if self._placement.is_bound_beside(connection, start):
                return False
            self._place_at = start + _PLACE_SECONDS
        if (
            usual > _SHORT_SECONDS
            or start < self._paused_until
            or start < _TURN.taken_until
            or start < _COURTESY.rests_until
        ):
            return False
        seconds = _SHORTEST_SPIN_SECONDS + 3 * usual
        deadline = start + (seconds if seconds < _LONGEST_SPIN_SECONDS else _LONGEST_SPIN_SECONDS)
        _TURN.taken_until = deadline
        ring = connection.ring
        has_come = False
        if ring is not None:
            ring.words[SLEEPS] = AWAKE
        try:
            has_come = self._spin(connection, view, counts, deadline, usual)
        finally:
            _TURN.taken_until = 0.0
            if ring is not None and not (has_come and self._looks_on):
                ring.words[SLEEPS] = ASLEEP
        if not has_come:
            if ring is None or not ring.look_away():
                return False
            if not self._look_once_more(connection, view, counts):  # the peer wrote nonsense
                return False
        self.note_arrival()
        if self._pause_seconds > _SHORTEST_PAUSE_SECONDS:
            self._pause_seconds /= 2
        return True

    def note_arrival(self) -> None:
        """What was waited for since the last `receive` has come."""
        since = self._waits_since
        if since:
            self._waits_since = 0.0
            now = self._now()
            if _TURN.latest is not self:
                _TURN.latest, _TURN.latest_since = self, now
            self._waits_for.note(now - since)
            self._awake_until = now + _AWAKE_SECONDS

    def _spin(  # noqa: PLR0912 - each look is short, and there is one way out for each rule
        self,
        connection: StreamConnection,
        view: memoryview,
        counts: list[int],
        deadline: float,
        usual: float,
    ) -> bool:
        receive_into, now, yield_cpu = connection.receive_into, self._now, self._yield_cpu
        before, ring = self._waits_since, None
        # Who watches a ring keeps the GIL, which those may want soon who have received something
        # of late.
        if _TURN.latest is self and before > _TURN.latest_since + _SHARING_SECONDS:
            ring = connection.ring
        check_at = before + _CHECK_SECONDS
        keeps = _TURN.shares_until < before < self._awake_until
        yield_at = before
        if keeps and before >= _COURTESY.offers_until:
            yield_at += min(_LEAST_KEEP_SECONDS + 2 * usual, _MOST_KEEP_SECONDS)
            if ring is not None:
                before = ring.watch(now, before + _WATCH_SECONDS)
        while True:
            try:  # what is in the ring came before all that is not
                if ring is None or not ring.take(view, counts):
                    receive_into(view, counts, 0)
            except BlockingIOError:
                yields = before >= yield_at
                if yields:
                    yields_since = now()  # a look alone takes as long on a slow machine
                    yield_cpu()
            else:
                return True
            after = now()
            if after - before > _LONGEST_LOOK_SECONDS:
                self._paused_until = after + self._pause_seconds
                self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
                return False
            if yields and after - yields_since > LONG_YIELD_SECONDS:
                _COURTESY.note_long_yield(after)
            if after > deadline:
                return False
            if after > check_at:
                if self._is_wanted():
                    _TURN.shares_until = after + _SHARING_SECONDS
                    return False
                check_at = after + _CHECK_SECONDS
            before = after
            if ring is not None and not yields:
                before = ring.watch(now, after + _WATCH_SECONDS)

    def _look_once_more(self, connection: Connection, view: memoryview, counts: list[int]) -> bool:
        """Whoever has run on this CPU meanwhile may have been the peer."""
        try:
            connection.receive_into(view, counts, 0)
        except BlockingIOError:
            return False
        return True
