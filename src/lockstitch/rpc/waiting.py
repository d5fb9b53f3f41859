"""Waiting for several futures at once, in a way that Ctrl-C can end.

`torch.futures.wait_all` holds an interrupt back until all have completed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.futures import Future

T = TypeVar("T")


class _Countdown:
    """Counts futures that complete; `over` is set with the last of them, or with the first failure."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._count = count
        self.failed: Future[object] | None = None
        self.over = threading.Event()

    def note(self, future: Future[object]) -> None:
        try:
            future.value()
            failed = False
        except Exception:  # noqa: BLE001 - raised by wait_all, on the thread that waits
            failed = True
        with self._lock:
            self._count -= 1
            if failed and self.failed is None:
                self.failed = future
            if self.failed is not None or self._count == 0:
                self.over.set()


def wait_all(futures: Iterable[Future[T]]) -> list[T]:
    """Returns the values of all `futures`, in their order, when the last has completed.

    Raises the exception of the first that fails, at once and without waiting for the others, and
    `KeyboardInterrupt` at Ctrl-C.
    """
    waited = list(futures)
    if waited:
        countdown = _Countdown(len(waited))
        for future in waited:
            future.add_done_callback(countdown.note)  # type: ignore[arg-type]
        countdown.over.wait()
        if countdown.failed is not None:
            countdown.failed.wait()
    return [future.value() for future in waited]
