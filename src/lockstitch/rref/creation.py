"""What becomes of one `rpc.remote`: the answer only says that the value is made, or, in words, that
its function failed.

Most programs never ask for it. So no future is made until `RRef._get_future` wants one, and whoever
reads the answer acts on it at once: that is short, and wakes nobody.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from lockstitch.errors import RemoteError, without_traceback
from lockstitch.runtime.pending import Answering, Future

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from lockstitch.runtime.pending import Pending


class Creation:
    """A `runtime.pending.Completion`; `outcome(error)` is called when it is over, error None where
    all went well. It must be harmless when repeated."""

    __slots__ = (
        "_channel",
        "_failure",
        "_future",
        "_is_over",
        "_lock",
        "_outcome",
        "_pending",
        "_settled_by",
        "error",
    )

    def __init__(self, outcome: Callable[[BaseException | None], None]) -> None:
        self._outcome = outcome
        self._lock = threading.Lock()
        self._is_over = False
        self._settled_by = 0
        self._future: Future[Any] | None = None
        self._channel: Answering | None = None
        self._pending: Pending | None = None
        self._failure: object = None
        self.error: BaseException | None = None

    @property
    def has_callbacks(self) -> bool:
        """Whether somebody wants to be called back."""
        return self._future is not None and self._future.has_callbacks

    @property
    def settled_by(self) -> int:
        """The thread that reads and completes it now; 0: none."""
        return self._settled_by

    @settled_by.setter
    def settled_by(self, thread: int) -> None:
        self._settled_by = thread
        if self._future is not None:
            self._future.settled_by = thread

    def attach(self, channel: Answering, pending: Pending) -> None:
        """The answer to `pending` will come over `channel`."""
        self._channel, self._pending = channel, pending

    def complete(self, value: object, error: BaseException | None) -> None:
        """Notes that the creation is over; harmless when repeated."""
        if self._is_over:
            return
        # Whoever keeps the error must not keep what its frames hold.
        error = None if error is None else without_traceback(error)
        self._outcome(error)
        with self._lock:
            self.error, self._failure = error, value
            self._is_over = True
            self._channel = self._pending = None
            future = self._future
        if future is not None:
            future.complete(None, error)

    def future(self) -> Future[Any]:
        """Completes with None, or with the error; the same one each time."""
        with self._lock:
            if self._future is None:
                self._future = Future()
                self._future.settled_by = self._settled_by
                if self._is_over:
                    self._future.complete(None, self.error)
                elif self._channel is not None and self._pending is not None:
                    self._future.attach(self._channel, self._pending)
            return self._future

    def outcome(self) -> torch.futures.Future[Any]:
        """Completes as `future` does, but with a `RemoteError` where the function failed."""
        return self.future().then(self._raise_failure)

    def _raise_failure(self, made: torch.futures.Future[Any]) -> None:
        made.wait()
        if self._failure is not None:
            raise RemoteError(str(self._failure))
