"""How many calls of users' functions may run at once on a worker; those beyond wait in a backlog.

A call that waits for another worker is not counted meanwhile, and goes on whenever it can. So more
may be running than the limit says; none of the backlog begins until they are fewer.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class CallLimit:
    """See the module. `most` is the limit, `running` the number of calls counted now."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.running = 0
        self.is_one_coming = False
        """Whether a thread is on its way to `begin_next`."""
        self._lock = threading.Lock()
        self._backlog: deque[Callable[[], None]] = deque()

    def __repr__(self) -> str:
        return f"<CallLimit {self.running} of {self.most} run · {len(self._backlog)} wait>"

    @property
    def backlog(self) -> int:
        """How many calls wait for others to end."""
        return len(self._backlog)

    def begin(self, call: Callable[[], None]) -> bool:
        """Counts `call` as running (True), or puts it into the backlog (False)."""
        with self._lock:
            if self.running >= self.most:
                self._backlog.append(call)
                return False
            self.running += 1
            return True

    def line_up(self, call: Callable[[], None]) -> bool:
        """Puts `call` into the backlog; whether a thread must come for what waits there. For who
        may be struck by an interrupt at any step: it counts nothing."""
        with self._lock:
            self._backlog.append(call)
            if self.is_one_coming or self.running >= self.most:
                return False
            self.is_one_coming = True
            return True

    def begin_next(self) -> Callable[[], None] | None:
        """The call of the backlog that may begin now, counted; None where there is none."""
        with self._lock:
            self.is_one_coming = False
            if not self._backlog or self.running >= self.most:
                return None
            self.running += 1
            return self._backlog.popleft()

    def begin_anyway(self) -> None:
        """Counts a call that runs already."""
        with self._lock:
            self.running += 1

    def end(self) -> Callable[[], None] | None:
        """One call less runs; or returns the call of the backlog that takes its place, counted
        already."""
        with self._lock:
            if self._backlog and self.running <= self.most:
                return self._backlog.popleft()
            self.running -= 1
            return None

    def drop_backlog(self) -> None:
        """The calls that wait are not run any more."""
        with self._lock:
            self._backlog.clear()
