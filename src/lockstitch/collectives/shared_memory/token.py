"""Who drives: of several threads that wait for operations, the one that holds the token. The others
follow: they sleep on their handles, and one of them is woken when the token is free.

                  free                               held by another thread
    hold     ┌─► takes it, works, gives it back   follow ─► joins the followers
             │                    │                   │     looks once more: is it free by now?
             │                    ▼                   ▼     sleeps on its handle
             │        wakes the first follower        │
             │        whose handle is not done        │  woken by the one who gave it back, by the
             └────────────────────────────────────────┘  end of its operation, or by the time

A thread becomes a follower before it looks whether the token is held, and who gives the token back
does so before it looks for followers. So at least one of the two sees the other, as in
`memory.doorbell`. The background thread drives only while nobody else wants to: a follower that
ought to have the token instead says so (`is_wanted`), and that thread then gives it back.

An interrupt may end any wait at any call."""

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
        self.is_held = self._lock.locked
        """Whether some thread has it now."""
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
        """Follows the thread that drives: sleeps until the handle is done, the token is free, or
        the time is over. `call_off` may set `is_wanted`, which is unset at the end."""
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
        """Waits until no thread has the token."""
        with self._lock:
            pass

    def _promote(self) -> None:
        for follower in list(self._followers):
            if not follower.is_done:
                follower.nudge()
                return
