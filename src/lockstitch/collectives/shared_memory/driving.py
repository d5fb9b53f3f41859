"""Who drives: waiting for operations of the ranks of one host, and doing the work meanwhile.

Whoever waits does the work, one thread at a time; there is no coordinator and no cycle. Of several
waiting threads one holds the *token*: it looks at the logs again and again for a moment, then
sleeps until another rank wakes it; `spreading` sees to it that the ranks do not do so on one
processor. The others sleep on their handles. The holder completes their operations too, and passes
the token on when its own is done. Operations that nobody waits for are looked after by a background
thread (`background_driver`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from lockstitch.collectives.shared_memory.background_driver import BackgroundDriver
from lockstitch.collectives.shared_memory.token import Token

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.shared_memory.open_sets import OpenSets
    from lockstitch.collectives.shared_memory.spreading import Spreading
    from lockstitch.collectives.shared_memory.wakeups import Wakeups

# Waking up costs about 50 µs, and whoever is woken may come to a processor where others are.
_SPIN_SECONDS: Final = 300e-6
# Where ranks share processors, and the kernel may not yield to the one that has something to do:
# that can take milliseconds, if nobody sleeps.
_SPIN_SECONDS_IN_VAIN: Final = 30e-6
# Who gives the processor away for longer than this has given it to somebody.
_GIVEN_AWAY_SECONDS: Final = 10e-6
_LOOK_SECONDS: Final = 1.0
# How soon to look again for room that others give back without waking anybody.
_ROOM_SECONDS: Final = 1e-3


class Driver:
    """Drives the operations of one rank in all of its process sets."""

    def __init__(
        self,
        rank: int,
        sets: OpenSets,
        pending: PendingOperations,
        wakeups: Wakeups,
        spreading: Spreading,
    ) -> None:
        self._sets = sets
        self._pending = pending
        self._wakeups = wakeups
        self._spreading = spreading
        self._token = Token()
        self._is_spinning = False
        """Whether a thread spins that does not hold the token."""
        self._background = BackgroundDriver(f"rank {rank} reductions", self)

    # ------------------------------------------------------------ waiting

    def wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None) -> None:
        """Returns when the handle is done, or when `gives_up`, which is asked about once a second,
        says so. An error ends the session, of all ranks; an interrupt is raised."""
        try:
            self._spreading.note_wait()
            has_looked = handle.request.is_awaited
            while not handle.is_done:
                if gives_up is not None and gives_up():
                    return
                if not self._token.is_held() and self._looks_a_while(handle, has_looked):
                    return
                has_looked = False
                if not self._token.hold(lambda: self._drive(handle, gives_up)):
                    self._token.follow(handle, self._call_off_background, _LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - told to all: nobody goes on without this rank
            self._sets.end(error)
        except BaseException:  # an interrupt: perhaps nobody waits for it any more
            handle.request.is_awaited = False
            self._background.look_after()
            raise

    def _looks_a_while(self, handle: Handle[Any], has_looked: bool) -> bool:
        """Spins, without the token, if no other thread does: whether the handle is done."""
        if self._is_spinning:
            return handle.wait(_SPIN_SECONDS)
        self._is_spinning = True
        try:
            return self._spin(handle, has_looked=has_looked)
        finally:
            self._is_spinning = False

    def wait_for_room(self) -> None:
        """Waits for a moment: others give room back without waking anybody."""
        if not self._token.hold(lambda: self._sleep(lambda: self._is_over(None), _ROOM_SECONDS)):
            threading.Event().wait(_ROOM_SECONDS)

    def rest(self, seconds: float) -> None:
        """Sleeps for so long, or until there is something to do; sees who dies meanwhile."""
        if not self._token.hold(lambda: self._sleep(lambda: False, seconds)):
            threading.Event().wait(min(seconds, _ROOM_SECONDS))

    def look_after(self) -> None:
        """Has the background thread look after what is under way and nobody waits for yet."""
        self._background.look_after()

    def close(self) -> None:
        """Returns when nobody drives any more; `OpenSets.leave` comes before."""
        # Whoever is inside a sleep is woken, and gone when the token is free.
        self._wakeups.wake_own()
        self._background.close()
        self._token.wait()
        self._spreading.leave()

    def _call_off_background(self) -> None:
        """Asks the background thread for the token, if it is the one who drives."""
        if self._background.is_driving:
            self._token.is_wanted = True
            self._wakeups.wake_own()

    # ------------------------------------------------------------ driving, with the token

    def _drive(
        self, handle: Handle[Any] | None, gives_up: Callable[[], bool] | None = None
    ) -> None:
        """Works until the handle is done; without one, until nothing is under way or somebody else
        wants to."""
        while not self._is_over(handle):
            self._sleep(lambda: self._is_over(handle))
            if gives_up is not None and gives_up():
                return
            self._spin(handle)

    def _spin(self, handle: Handle[Any] | None, *, has_looked: bool = False) -> bool:
        """Works until the same, or for as long as there is something to do and a moment longer;
        whether it is over. Who waits for a handle needs no token for that. `has_looked`: just now,
        and found nothing."""
        sets, now, sched_yield = self._sets, time.perf_counter, os.sched_yield
        spin_seconds = _SPIN_SECONDS_IN_VAIN if self._spreading.yields_in_vain else _SPIN_SECONDS
        left = spin_seconds
        begin = now()
        while left > 0:
            if has_looked:
                yielded = now()
                sched_yield()
                back = now()
                left -= yielded - begin
                # While another one has had the processor, this one has not spun.
                if back - yielded < _GIVEN_AWAY_SECONDS:
                    left -= back - yielded
                begin = back
            is_news = False
            if handle is None or sets.may_have_news(handle):
                with sets.lock:
                    if sets.has_left:
                        break
                    is_news = sets.turn()
            if handle.is_done if handle is not None else self._is_over(None):
                return True
            has_looked = not is_news
            if is_news:
                left = spin_seconds
                begin = now()
        return self._is_over(handle)

    def _is_over(self, handle: Handle[Any] | None) -> bool:
        if handle is not None:
            return handle.is_done
        return self._token.is_wanted or not len(self._pending) or self._sets.has_left

    def _sleep(self, is_over: Callable[[], bool], timeout_seconds: float = _LOOK_SECONDS) -> None:
        """Sleeps until another rank wakes this one, unless there is something to do."""
        sets = self._sets

        def has_come() -> bool:
            with sets.lock:
                is_news = sets.turn()
            return is_news or is_over()

        try:
            dead = self._wakeups.sleep_unless(has_come, timeout_seconds)
        except OSError as error:
            sets.end(error)
            return
        if dead is None:
            return
        if dead:
            sets.note_deaths(dead)
        self._pending.look_for_stalls(sets.known_missing, give_up=sets.end)

    # ------------------------------------------------------------ for the background thread

    def drive_unattended(self) -> None:
        """Drives if nobody else does."""
        # The session has ended with what goes wrong, and others will be told.
        with contextlib.suppress(Exception):
            if not self._token.is_wanted:
                self._token.hold(lambda: self._drive(None))

    @property
    def turns(self) -> int:
        """How often somebody has looked at the logs."""
        return self._sets.turns

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way that nobody may wait for soon."""
        return any(
            not handle.request.is_awaited and handle.route is None for handle in self._pending.all()
        )
