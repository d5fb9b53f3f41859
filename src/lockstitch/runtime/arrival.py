"""Something that a thread of the pool waits for, and that a message will bring.

Where another thread reads that message, this one has to be woken, and the two compete for the GIL.
So it reads for itself while it waits: the reader that brings the first of what it waits for gives
it the reading right along, and from then on it has that right between one wait and the next; see
`ThreadPool.wait_for`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.runtime.source import Source


class Arrival:
    """See the module. `may_keep`: whether the thread that waits will soon wait again, so that it is
    worth to leave the reading right with it. `is_near`: whether it usually comes so soon that it is
    worth to look for it before falling asleep."""

    __slots__ = ("_lock", "interrupt", "is_near", "is_there", "may_keep", "token")

    def __init__(self, *, may_keep: bool = False, is_near: bool = True) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.may_keep = may_keep
        self.is_near = is_near
        self.is_there = False
        self.token: list[tuple[Source | None, bool]] | None = None
        """The reading right, where it came along."""
        self.interrupt: Callable[[], None] | None = None
        """Ends the wait for messages of the thread that waits, while it reads."""

    def __repr__(self) -> str:
        how = "there" if self.is_there else "read for" if self.interrupt else "waited for"
        return f"<Arrival · {how}>"

    def finish(self) -> None:
        """It is there: whoever waits for it goes on. Call it once, from any thread."""
        self.is_there = True
        interrupt = self.interrupt
        if interrupt is not None:
            interrupt()
        self._lock.release()

    def sleep(self) -> None:
        """Returns when it is there."""
        self._lock.acquire()
