"""Who drives: of several threads that wait for operations, one. The others sleep on their handles,
and one of them is woken when the token is free. An interrupt may end any wait at any call."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from lockstitch.interrupts import if_free

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives.handles import Handle


class Token:
    """A lock that is never waited for, and those who would have it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: list[Handle[Any]] = []
        self.is_wanted = False
        """Whether somebody waits for it who ought to have it rather than the background thread."""

    def hold(self, work: Callable[[], None]) -> bool:
        """Does the work if nobody else has the token; whether that was so."""
        try:
            is_held = if_free(self._lock, work)
        except BaseException:
            self._promote()
            raise
        if is_held:
            self._promote()
        return is_held

    def follow(
        self, handle: Handle[Any], call_off: Callable[[], None], timeout_seconds: float
    ) -> None:
        """Another thread drives: sleeps until the handle is done, the token is free, or the time is
        over. `call_off` may say that it is wanted; that holds until then."""
        signal = handle.signal()
        try:
            self._followers.append(handle)
            call_off()
            # Published first, tried afterwards: who passes the token on looks in the other order.
            if self._lock.locked():
                signal.wait(timeout_seconds)
                handle.rearm()
        finally:
            self.is_wanted = False
            with contextlib.suppress(ValueError):  # an interrupt came before
                self._followers.remove(handle)

    def wait(self) -> None:
        """Until nobody has it."""
        with self._lock:
            pass

    def _promote(self) -> None:
        for follower in list(self._followers):
            if not follower.is_done:
                follower.nudge()
                return
