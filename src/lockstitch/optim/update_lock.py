"""The lock that a worker holds while its parameters are updated."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lockstitch.runtime.worker import Worker


class UpdateLock:
    """A lock over all parameters that live on one worker, as a context manager.

    One for all of them: optimizers of different trainers usually update the very same parameters. A
    thread that waits for its turn is replaced by another one of the worker's pool meanwhile.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = threading.Lock()

    @classmethod
    def of(cls, worker: Worker) -> UpdateLock:
        """Returns the lock of this worker."""
        return worker.obtain(cls, lambda: cls(worker))

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            with self._worker.agent.blocked():
                self._lock.acquire()

    def __exit__(self, *_exception: object) -> None:
        try:
            # All threads of a process share what autocast has cast, until one of them leaves it:
            # another call that is in it now would hand the values of before to the next.
            torch.clear_autocast_cache()
        finally:
            self._lock.release()
