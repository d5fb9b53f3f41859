"""Telling other workers that a context is over, until they have heard it.

Nobody waits for a release, so nobody would notice that one got lost: the context would stay on that
worker for ever. Hence each is answered, and sent again until then, or until the worker is gone.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

from lockstitch.errors import LockstitchError
from lockstitch.rref.events import Send
from lockstitch.rref.outbox import FIRST_RETRY_SECONDS, Outbox
from lockstitch.wire.messages import ReleaseContext

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.ids import WorkerId
    from lockstitch.runtime.worker import Worker


class Releases:
    """The releases that one worker has told and that are not answered yet."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._outbox = Outbox()
        self._ticking = False

    def __len__(self) -> int:
        return len(self._outbox)

    def tell(self, workers: Iterable[WorkerId], context: int) -> None:
        """Tells `workers` that `context` is over."""
        with self._lock:
            sends = [
                self._outbox.put((worker, context), Send(worker, ReleaseContext(context)))
                for worker in workers
            ]
            must_start = bool(sends) and not self._ticking
        self._send_all(sends)
        if must_start:
            self._tick()

    def settle(self, worker: WorkerId, context: int) -> None:
        """`worker` has heard of it."""
        with self._lock:
            self._outbox.settle((worker, context))

    def forget(self, worker: WorkerId) -> None:
        """Stops telling `worker`, which is gone."""
        with self._lock:
            self._outbox.forget(worker)

    def _tick(self) -> None:
        with self._lock:
            again = self._outbox.tick(self._worker.clock.now())
            self._ticking = goes_on = len(self._outbox) > 0
        if goes_on:
            self._worker.agent.call_later(FIRST_RETRY_SECONDS, self._tick)
        if again:
            # Not on the timer's thread: a send may have to wait for a slow peer.
            self._worker.agent.spawn(partial(self._send_all, again))

    def _send_all(self, sends: list[Send]) -> None:
        for send in sends:
            # A worker that is gone needs to know nothing.
            with contextlib.suppress(LockstitchError):
                self._worker.agent.send(send.to, send.message)
