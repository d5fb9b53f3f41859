"""Where finalizers leave word that a reference is gone, and the thread that reads it.

A finalizer may run at any point, in any thread and under any lock, so all it does is to append a
fork to a `deque` and to wake the thread by a `SimpleQueue`, whose `put` is one reentrant C call.
The thread sleeps on that queue, so an idle worker costs nothing. Once woken it waits a moment for
more, and leaves them where whoever drains will find them. A program that makes and drops references
in a loop is then not disturbed by each, and one message tells of many. Where many have come
already, the program's next call ends the waiting.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import GlobalId


_PATIENCE_SECONDS: Final = 0.005
_MANY: Final = 16


class FinalizerQueue:
    """Calls `drop(forks)` for what finalizers left; the thread starts with `start`."""

    def __init__(self, name: str, drop: Callable[[tuple[GlobalId, ...]], None]) -> None:
        self._name = name
        self._drop = drop
        self._left: deque[GlobalId] = deque()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = False
        self._closed = False

    def let_go(self, fork: GlobalId) -> None:
        """An object that stood for `fork` is gone. Takes no lock."""
        if not self._closed:
            self._left.append(fork)
            if self._wakeups.empty():
                self._wakeups.put(None)

    def relieve(self) -> None:
        """Ends the waiting of references that are to be told of, if they are many. It is cheap, and
        not for finalizers."""
        if len(self._left) >= _MANY and not self._hurry.is_set():
            self._hurry.set()

    def start(self) -> None:
        """Starts the thread, unless it runs already."""
        if self._started:
            return
        with self._lock:
            if self._thread is None and not self._closed:
                self._started = True
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def drain(self) -> None:
        """Acts on what was left until now, instead of the thread."""
        forks: list[GlobalId] = []
        with contextlib.suppress(IndexError):  # there are no more
            while True:
                forks.append(self._left.popleft())
        if forks:
            self._drop(tuple(forks))

    def _run(self) -> None:
        while not self._closed:
            self._wakeups.get()
            self._hurry.wait(_PATIENCE_SECONDS)
            if not self._closed:
                self._hurry.clear()
            self.drain()
        self.drain()

    def close(self, timeout_seconds: float | None = None) -> None:
        """Ends the thread; from now on nobody need be told. If it is telling somebody who takes in
        nothing, it is waited for so long at most (None: until it is through)."""
        with self._lock:
            self._closed = True
            self._hurry.set()
            thread = self._thread
        self._wakeups.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_seconds)
