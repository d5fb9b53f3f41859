"""Who drives: of several threads that wait for operations, one. The others sleep on their handles,
and one of them is woken when the token is free. An interrupt may end any wait at any call."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives.handles import Handle

_NOT_BLOCKING: Final = (False,)


class Token:
    """A lock that is never waited for, and those who would have it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: list[Handle[Any]] = []
        self.is_wanted = False
        """Whether somebody waits for it who ought to have it rather than a helper."""

    def hold(self, work: Callable[[], None]) -> bool:
        """Does the work if nobody else has the token; whether that was so."""
        # In one call, so that no interrupt can come between taking and knowing of it.
        held: list[bool] = []
        try:
            held.extend(map(self._lock.acquire, _NOT_BLOCKING))
            if held[0]:
                work()
        finally:
            if True in held:
                self._lock.release()
                self._promote()
        return held[0]

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
