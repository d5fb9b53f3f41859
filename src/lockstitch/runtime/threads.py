"""The threads of a thread pool: as many as there are tasks at once; idle ones are used again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_IDLE_SECONDS = 10.0


class _Handoff:
    """Hands tasks to one thread, which sleeps here until it gets the next."""

    __slots__ = ("lock", "task")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.task: Callable[[], None] | None = None


class Threads:
    """Runs each task at once on a thread of its own. They are called `name`-1, `name`-2 …; `enter`
    runs first on each; one that has been idle for ten seconds ends."""

    def __init__(self, name: str, enter: Callable[[], None]) -> None:
        self._name = name
        self._enter = enter
        self._lock = threading.Lock()
        self._living: set[threading.Thread] = set()
        self._idle: list[_Handoff] = []
        self._started = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._living)

    @property
    def busy(self) -> int:
        """How many run a task now."""
        with self._lock:
            return len(self._living) - len(self._idle)

    def all(self) -> list[threading.Thread]:
        """Returns all threads that have not ended."""
        return list(self._living)

    def assign(self, task: Callable[[], None]) -> None:
        """Has `task` run, which must raise nothing."""
        with self._lock:
            idle = self._idle
            if not idle:
                self._start(task)
                return
            # Without a call in between, so that no interrupt can lose the task or the thread.
            handoff = idle[-1]
            del idle[-1]
            handoff.task = task
            handoff.lock.release()

    def close(self) -> None:
        """Idle threads end now, the others after their task."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for handoff in idle:
            handoff.lock.release()

    def _start(self, task: Callable[[], None]) -> None:
        """Under the lock, so that `close` meets no thread that has not started yet."""
        handoff = _Handoff()
        handoff.task = task
        self._started += 1
        thread = threading.Thread(
            target=self._work,
            args=(handoff,),
            name=f"{self._name}-{self._started}",
            daemon=True,
        )
        try:
            self._living.add(thread)
            thread.start()
        except BaseException:  # an interrupt, or the system has no more threads
            if thread.ident is None:
                self._living.discard(thread)
            raise

    def _work(self, handoff: _Handoff) -> None:
        self._enter()
        while handoff.task is not None:
            task, handoff.task = handoff.task, None
            task()
            del task  # an idle thread keeps nothing alive of what it ran
            with self._lock:
                if self._closed:
                    break
                self._idle.append(handoff)
            self._await_task(handoff)
        with self._lock:
            self._living.discard(threading.current_thread())

    def _await_task(self, handoff: _Handoff) -> None:
        if not handoff.lock.acquire(timeout=_IDLE_SECONDS):
            with self._lock:
                if handoff in self._idle:
                    self._idle.remove(handoff)
                    return  # nobody needs this thread
            handoff.lock.acquire()
