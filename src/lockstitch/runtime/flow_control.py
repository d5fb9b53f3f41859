"""How much may be on its way to one peer: who sends faster than it answers has to wait.

What counts is the size of the tensors in requests without an answer: whether they lie in a socket,
in the callee's backlog or in its function, somebody's memory holds them. A request waits until
those before it have been answered, unless there is none: the largest of all can be sent alone.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_SECONDS = 0.1
# So many of the smallest requests that count would be needed to fill a connection.
_MOST_REQUESTS = 1 << 16


class FlowControl:
    """The bytes under way to one peer, `limit` at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.least = limit // _MOST_REQUESTS
        """What holds no more than so much is not worth counting, in bytes."""
        # Taken itself, and not by the condition: an interrupt in the code of that would keep it.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self.bytes = 0

    def add(self, nbytes: int, look: Callable[[], None]) -> None:
        """Takes in a request of that size, when there is room for it. `look` is called now and then
        meanwhile, and may end the wait by an exception."""
        with self._lock:
            while not self._fits(nbytes):
                self._waiting += 1
                try:
                    self._changed.wait(_LOOK_SECONDS)
                finally:
                    self._waiting -= 1
                if not self._fits(nbytes):
                    look()
            self.bytes += nbytes

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for a request of that size."""
        with self._lock:
            return self._fits(nbytes)

    def _fits(self, nbytes: int) -> bool:
        return not self.bytes or self.bytes + nbytes <= self._limit

    def remove(self, nbytes: int) -> None:
        """A request of that size is over, one way or the other."""
        with self._lock:
            self.bytes -= nbytes
            if self._waiting:
                self._changed.notify_all()
