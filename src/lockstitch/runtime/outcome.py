"""How something that runs elsewhere will end: a value or an error, told to whoever wants to know.

Less than a future, and unlike one of torch's it keeps the frames of an error until that is read.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Outcome:
    """See the module; `end` completes it, `value` reads it, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Outcome], None]] = []
        self._value: Any = None
        self._error: BaseException | None = None
        self.is_done = False

    def end(self, value: Any, error: BaseException | None) -> None:
        """Completes it, and runs the callbacks; the first time counts."""
        with self._lock:
            if self.is_done:
                return
            self._value, self._error, self.is_done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
        del value, error  # frames that the error gets further on would keep it in a circle
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Outcome], None]) -> None:
        """Calls `callback(self)` in the thread that completes it, or at once where it is over."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback(self)

    def value(self) -> Any:
        """Returns the value, or raises the error, and keeps neither."""
        value, error = self._value, self._error
        self._value = self._error = None
        try:
            if error is not None:
                raise error
            return value
        finally:
            del error  # its frames, of which this is one, would keep it in a circle
