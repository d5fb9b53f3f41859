"""The thread that completes the futures of one group's works.

DistributedDataParallel waits for futures inside the engine, where nobody can do a session's work.
So a thread waits for the works whose futures somebody has asked for, in the order in which they
were submitted: the ranks do them in that order, too. It begins with the first of them.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Waiting(Protocol):
    """A work."""

    def complete(self, future: torch.futures.Future[Any]) -> None:
        """Waits for it, and completes its future."""
        ...


class Completions:
    """See the module."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[Waiting, torch.futures.Future[Any]] | None]
        self._queue = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, work: Waiting, future: torch.futures.Future[Any]) -> None:
        """Has the future completed when the work is done."""
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._queue.put((work, future))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
        if is_closed:
            work.complete(future)  # the session has ended, so nothing is waited for

    def close(self) -> None:
        """Ends the thread, when the session has ended; harmless when repeated."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            thread = self._thread
        if thread is not None:
            if is_first:
                self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, future = item
            work.complete(future)
            del item, work, future  # not kept while nothing is under way
