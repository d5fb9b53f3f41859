"""The value of a reference on its owner: there, or an exception instead, or still to come.

The reference that a program made itself, the table of shared values and the function that still
computes it all hold the same `OwnedValue`; when nobody does any more, the value goes.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from lockstitch.devices.streams import side_streams, wait_for
from lockstitch.errors import RpcTimeoutError, copy_of
from lockstitch.runtime.inherited import refuse_to_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.devices.streams import Event
    from lockstitch.ids import GlobalId

TIMED_OUT = (
    "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node "
    "does not exist."
)


class OwnedValue:
    """The value of a reference on its owner, or the exception in its place. The first `set` or
    `fail` counts, later ones are ignored."""

    __slots__ = (
        "__weakref__",
        "_begun",
        "_error",
        "_forbidden",
        "_lock",
        "_value",
        "_waiters",
        "is_done",
        "reference",
    )

    def __init__(self, reference: GlobalId) -> None:
        self.reference = reference
        self.is_done = False
        self._value: Any = None
        self._begun: list[Event] = []
        """What is to be waited for where the value was made on streams of the maker's own."""
        self._error: BaseException | None = None
        self._forbidden: BaseException | None = None
        self._lock = threading.Lock()
        self._waiters: list[Callable[[], None]] = []

    def __str__(self) -> str:
        return f"OwnerRRef({self.reference})"

    def set(self, value: object) -> None:
        """The value is there."""
        self._finish(value, None)

    def fail(self, error: BaseException) -> None:
        """Notes that there will be no value, because of `error`."""
        self._finish(None, error)

    def _finish(self, value: object, error: BaseException | None) -> None:
        with self._lock:
            if self.is_done:
                return
            self._value = value
            if error is None:
                self._begun = side_streams()
            self._error = error
            self.is_done = True
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def forbid(self, error: BaseException) -> None:
        """Forbids the use of the reference, value or not: whoever made it was told that it
        failed."""
        self.fail(error)
        self._forbidden = error

    def check_usable(self) -> None:
        """Raises the error of `forbid`."""
        if self._forbidden is not None:
            raise copy_of(self._forbidden)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback()` once there is an outcome: at once, or in the thread that brings it."""
        with self._lock:
            if not self.is_done:
                self._waiters.append(callback)
                return
        callback()

    def get(
        self,
        timeout_seconds: float | None = None,
        blocked: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Any:
        """The value, or its exception raised; waits for it, within `blocked()`.

        Raises `RpcTimeoutError` when it does not come in time.
        """
        if not self.is_done:
            refuse_to_block("waiting for the value of a reference")
            done = threading.Event()
            self.when_done(done.set)
            with blocked():
                if not done.wait(timeout_seconds):
                    raise RpcTimeoutError(
                        f"RPC ran for more than set timeout ({timeout_seconds} s): here on its "
                        "owner the value is not there yet, since the function that rpc.remote has "
                        f"called has not returned ({self})"
                    )
        if self._error is not None:
            raise copy_of(self._error)
        if self._begun:
            wait_for(self._begun)
            self._begun = []
        return self._value
