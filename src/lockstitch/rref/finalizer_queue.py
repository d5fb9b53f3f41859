"""Where finalizers leave word that a reference is gone, and the thread that reads it.

A finalizer may run at any point, in any thread and under any lock, and Python swallows an interrupt
that strikes it. So all that it does is the `put` of a `SimpleQueue`, one reentrant C call. The
thread sleeps on that queue, so an idle worker costs nothing. Once woken it waits a moment for more,
and leaves them where whoever drains will find them. A program that makes and drops references in a
loop is then not disturbed by each, and one message tells of many. Where many have come already, the
program's next call ends the waiting.
"""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")

_PATIENCE_SECONDS: Final = 0.005
_MANY: Final = 16


class FinalizerQueue(Generic[T]):
    """Calls `drop(things)` for what finalizers left; the thread starts with `start`."""

    def __init__(self, name: str, drop: Callable[[tuple[T, ...]], None]) -> None:
        self._name = name
        self._drop = drop
        self._left: SimpleQueue[T | None] = SimpleQueue()
        """None ends the thread."""
        self.let_go: Callable[[T], None] = self._left.put
        """Leaves word that what a thing stands for is gone. Takes no lock, and is of C."""
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = False
        self._closed = False
        self._is_over = False

    def relieve(self) -> None:
        """Ends the waiting of references that are to be told of, if they are many. It is cheap, and
        not for finalizers."""
        if self._left.qsize() >= _MANY and not self._hurry.is_set():
            self._hurry.set()

    def start(self) -> None:
        """Starts the thread, unless it runs already."""
        if self._started:
            return
        with self._lock:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread  # an interrupt before leaves one too many, not one too few
                self._started = True

    def drain(self) -> None:
        """Acts on what was left until now, instead of the thread."""
        left: list[T | None] = []
        with contextlib.suppress(Empty):  # there are no more
            while True:
                left.append(self._left.get_nowait())
        if None in left:
            self._left.put(None)  # it is for the thread
        things = tuple([each for each in left if each is not None])
        if things and not self._is_over:
            self._drop(things)

    def _run(self) -> None:
        while (first := self._left.get()) is not None:
            self._left.put(first)  # for whoever drains
            self._hurry.wait(_PATIENCE_SECONDS)
            if not self._closed:
                self._hurry.clear()
            self.drain()
        self._left.put(None)  # should there be another

    def close(self, timeout_seconds: float | None = None) -> None:
        """Ends the thread; from now on nobody need be told. If it is telling somebody who takes in
        nothing, it is waited for so long at most (None: until it is through)."""
        with self._lock:
            self._closed = True
            self._hurry.set()
            thread = self._thread
        self._left.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_seconds)
        self._is_over = True
