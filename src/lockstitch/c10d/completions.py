"""The threads that complete the futures of one group's works.

DistributedDataParallel waits for futures inside the engine, where nobody can do a session's work.
So a thread waits for the works whose futures somebody has asked for, in the order in which they
were submitted: the ranks do them in that order, too. Completing a future runs what was attached to
it (`Future.then`), and that may wait for other futures of the group, as the hooks of PowerSGD do.
So whoever completes one first leaves what else is queued to another thread, and what callbacks
submit is queued apart: the program may not go on before that is done. Threads begin when they are
needed: usually there is one.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Waiting(Protocol):
    """A work."""

    def outcome(self) -> BaseException | None:
        """Waits for it; returns what went wrong."""
        ...

    def complete(self, future: torch.futures.Future[Any], error: BaseException | None) -> None:
        """Completes its future."""
        ...


class Completions:
    """See the module."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queues: dict[str, deque[tuple[Waiting, torch.futures.Future[Any]]]] = {}
        """What is to be completed, in order, by the callback that has submitted it, if one has."""
        self._served: set[str] = set()
        """The queues of which a thread waits for the first, or has been called to do so."""
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._calls: SimpleQueue[str | None] = SimpleQueue()
        """What idle threads wait for: the queue that one of them is to serve, None at the end."""
        self._is_closed = False

    def add(self, work: Waiting, future: torch.futures.Future[Any], callback: str = "") -> None:
        """Has the future completed when the work is done, which was submitted by that callback, or
        by the program."""
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._queues.setdefault(callback, deque()).append((work, future))
                self._call(callback)
        if is_closed:
            work.complete(future, work.outcome())  # the session has ended: that does not wait

    def close(self) -> None:
        """Ends the threads, when the session has ended and nothing of it is waited for any more;
        harmless when repeated."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._idle):
                self._calls.put(None)
            self._idle = 0
        while others := self._take_threads():  # each may have called another one
            for thread in others:
                thread.join()

    def _take_threads(self) -> list[threading.Thread]:
        with self._lock:
            threads, self._threads = self._threads, []
        return [thread for thread in threads if thread is not threading.current_thread()]

    def _call(self, queue: str) -> None:
        """Calls a thread to serve a queue, if there is anything in it and none does. Holds the
        lock."""
        if queue in self._served or queue not in self._queues:
            return
        self._served.add(queue)
        if self._idle:
            self._idle -= 1
            self._calls.put(queue)
            return
        thread = threading.Thread(target=self._run, args=(queue,), name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, first: str) -> None:
        queue: str | None = first
        while queue is not None:
            self._serve(queue)
            queue = self._wait_for_call()

    def _serve(self, queue: str) -> None:
        """Waits for the first work of a queue and completes its future."""
        with self._lock:
            work, future = self._queues[queue].popleft()
            if not self._queues[queue]:
                del self._queues[queue]
        error = work.outcome()
        with self._lock:
            self._served.remove(queue)
            self._call(queue)  # before what may wait for the others
        work.complete(future, error)

    def _wait_for_call(self) -> str | None:
        with self._lock:
            if self._is_closed:
                return None
            self._idle += 1
        return self._calls.get()
