"""Deadlines and delayed work: one thread that sleeps until the earliest time it knows.

There is no timer per call. Delayed tasks are few and kept in a heap; the deadlines of outstanding
calls are not: whoever owns them is asked to look through them (`Deadlines`) when the earliest
deadline that was announced has come.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.clock import Clock


class Timer:
    """Runs short tasks at given times of a `Clock`. The thread starts with the first task."""

    def __init__(self, clock: Clock, name: str, report: Callable[[BaseException], None]) -> None:
        self._clock = clock
        self._name = name
        self._report = report
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call_later(self, seconds: float, task: Callable[[], None]) -> None:
        """Runs `task` on the timer's thread once `seconds` have passed."""
        self.call_at(self._clock.now() + seconds, task)

    def call_at(self, when: float, task: Callable[[], None]) -> None:
        """Runs `task` on the timer's thread once the clock shows `when`."""
        with self._lock:
            if self._closed:
                return
            heapq.heappush(self._heap, (when, next(self._order), task))
            if self._thread is None:
                self._start()
            elif self._heap[0][0] == when:
                self._changed.set()

    def _start(self) -> None:
        thread = self._thread = threading.Thread(
            target=self._run, name=f"{self._name}-timer", daemon=True
        )
        try:
            thread.start()
        except BaseException as error:
            if thread.ident is None:
                self._thread = None
            if not isinstance(error, RuntimeError):
                raise
            self._report(error)  # the system has no more threads: the next task tries again

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                self._changed.clear()
                now = self._clock.now()
                due = []
                while self._heap and self._heap[0][0] <= now:
                    due.append(heapq.heappop(self._heap)[2])
                following = self._heap[0][0] if self._heap else None
            for task in due:
                self._run_task(task)
            if not due:
                self._clock.wait_until(self._changed, following)

    def _run_task(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # noqa: BLE001 - reported; the thread must live on
            self._report(error)

    def close(self, timeout_seconds: float | None = None) -> None:
        """Ends the thread; tasks not yet due are dropped. One that runs is waited for, so long at
        most (None: until it ends)."""
        with self._lock:
            self._closed = True
            self._heap.clear()
            thread = self._thread
        self._changed.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_seconds)

    def living(self) -> list[threading.Thread]:
        """Its thread, if that has not ended and is not the current one."""
        thread = self._thread
        if thread is None or thread is threading.current_thread() or not thread.is_alive():
            return []
        return [thread]


class Deadlines:
    """Calls `sweep(now)` when the earliest announced deadline has come; it returns the next."""

    def __init__(self, timer: Timer, clock: Clock, sweep: Callable[[float], float | None]) -> None:
        self._lock = threading.Lock()
        self._timer = timer
        self._clock = clock
        self._sweep = sweep
        self.next = float("inf")
        """The earliest deadline that was announced."""

    def announce(self, deadline: float) -> None:
        """There is something to be looked at when `deadline` (of the clock) comes."""
        if deadline < self.next:
            with self._lock:
                if deadline >= self.next:
                    return
                self.next = deadline
            self._timer.call_at(deadline, self._look)

    def _look(self) -> None:
        now = self._clock.now()
        with self._lock:
            if now < self.next:
                return  # an earlier look, or one announced since, has taken this one's place
            self.next = float("inf")
        following = self._sweep(now)
        if following is not None:
            self.announce(following)
