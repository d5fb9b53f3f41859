"""How long a thread of Python keeps the interpreter while others wait for it.

A worker whose user's code is pure Python answers a call only when that code gives the interpreter
up, by default after 5 ms. With shorter turns it answers sooner, and every thread that computes in
Python pays for more switches. The setting is the interpreter's, so it is one for all workers of a
process: the shortest that any of them asks for.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class SwitchInterval:
    """The interpreter's own interval, and what workers made of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[float] = []
        self._before = 0.0

    def shorten(self, seconds: float) -> Callable[[], None]:
        """Asks for turns of at most `seconds`. What is returned takes that back, once; when nobody
        asks any more, the interval is what it was before."""
        with self._lock:
            if not self._wanted:
                self._before = sys.getswitchinterval()
            self._wanted.append(seconds)
            self._set()
        return lambda: self._withdraw(seconds)

    def _withdraw(self, seconds: float) -> None:
        with self._lock:
            self._wanted.remove(seconds)
            self._set()

    def _set(self) -> None:
        sys.setswitchinterval(min([self._before, *self._wanted]))


SWITCH_INTERVAL = SwitchInterval()
