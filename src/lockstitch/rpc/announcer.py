"""Tells callbacks of the program what happens in the group: in order, on one thread of its own.

A callback may call other workers, and may take its time: the others hear later, nothing is lost.
What it raises is printed with its traceback at once, does not keep the others from being told, and
is raised again by `shutdown`.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from lockstitch.attach.logs import ProcessLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerInfo
    from lockstitch.runtime.worker import Worker

_log = ProcessLog(__name__)
CALLBACK_SECONDS: Final = 0.2
"""How long `close` waits for a callback that takes its time."""


@dataclass(frozen=True, slots=True)
class MembershipEvent:
    """A worker has joined, left in good order, or died. `cause` says how that was seen."""

    kind: Literal["joined", "left", "died"]
    worker: WorkerInfo
    cause: str = ""


Callback: TypeAlias = "Callable[[MembershipEvent], object]"


class Announcer:
    """Tells callbacks of changes, on a thread that starts with the first callback."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._callbacks: list[Callback] = []
        self._queue: queue.SimpleQueue[tuple[Callback, MembershipEvent] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._closed = False
        self.error: BaseException | None = None
        """The first exception that a callback raised."""

    def __repr__(self) -> str:
        return f"<Announcer of {self._worker.name!r} · {len(self._callbacks)} callbacks>"

    def add(self, callback: Callback, so_far: list[MembershipEvent]) -> None:
        """Tells `callback` of changes from now on, and of `so_far` first."""
        with self._lock:
            if self._closed:
                return
            self._callbacks.append(callback)
            for event in so_far:
                self._queue.put((callback, event))
            if self._thread is None:
                name = f"{self._worker.name}-membership"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def remove(self, callback: Callback) -> None:
        """Tells `callback` of nothing that happens from now on; harmless when repeated."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def announce(self, event: MembershipEvent) -> None:
        """Has all callbacks told, in the order of the calls; does not wait."""
        if event.kind != "died":  # which is logged where it is found out
            _log.info("worker %r has %s", event.worker.name, event.kind)
        with self._lock:
            for callback in self._callbacks:
                self._queue.put((callback, event))

    def close(self, timeout_seconds: float = CALLBACK_SECONDS) -> None:
        """Tells what is still to be told, and ends the thread. Waits for a callback that takes its
        time, but no longer than that."""
        with self._lock:
            self._closed = True
            self._callbacks.clear()
            thread = self._thread
        self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_seconds)

    def _run(self) -> None:
        self._worker.adopt_thread()
        while (next_one := self._queue.get()) is not None:
            callback, event = next_one
            try:
                callback(event)
            except BaseException as error:  # noqa: BLE001 - printed, and raised by `shutdown`
                self.error = self.error or error
                self._worker.agent.report(error)
