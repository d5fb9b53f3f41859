"""Futures of works, and collectives that a program submits in what it attaches to them.

Such a callback (`Future.then`) runs when its operation is done, on whichever thread completes the
future, at another moment on each rank. What it submits can have no place among the operations that
the program submits meanwhile: the ranks would not agree about the order. So all that a callback
submits goes into a queue of its own, called by the operation to which the callback belongs: there
it meets what the same callback submits on the other ranks. The hooks of PowerSGD need that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from lockstitch.torch_internals.calls import set_unwrap_function

if TYPE_CHECKING:
    from collections.abc import Callable


class _Running(threading.local):
    """Which callback runs in this thread."""

    queue = ""


_RUNNING: Final = _Running()


def queue_of_callback() -> str:
    """Returns the queue of the callback that calls this; empty outside of callbacks."""
    return _RUNNING.queue


class WorkFuture(torch.futures.Future[Any]):
    """The future of an operation, or of a callback, which is called `name` on all ranks alike."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._attached = 0

    def set_exception(self, result: Any) -> None:
        """Completes it with an error, which is raised where somebody asks for the value; also in
        C++: the reducer of DistributedDataParallel takes tensors out of the value by pickling it,
        and would take what torch sets here, the error itself, for a value without tensors, and
        crash. Of a hook that has failed it would say only how the value looks, not being a tensor.
        """
        set_unwrap_function(self, _raise)
        self.set_result(_Failed(result))

    def then(self, callback: Callable[[torch.futures.Future[Any]], Any]) -> WorkFuture:
        """Has `callback(future)` called when this is done, and returns the future of its value."""
        queue = self._next_queue()
        following = WorkFuture(queue)

        def run(done: torch.futures.Future[Any]) -> None:
            try:
                value = _in_queue(queue, callback, done)
            except BaseException as error:  # noqa: BLE001 - Ctrl-C too: raised where it is waited for
                following.set_exception(error)
            else:
                following.set_result(value)

        super().add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[torch.futures.Future[Any]], None]) -> None:
        """Has `callback(future)` called when this is done."""
        queue = self._next_queue()
        super().add_done_callback(lambda done: _in_queue(queue, callback, done))

    def _next_queue(self) -> str:
        """The program attaches in the same order on all ranks."""
        self._attached += 1
        return f"{self._name}.{self._attached}"


class _Failed:
    """In the place of the value of what has failed."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> NoReturn:
        raise self.error

    __repr__ = __reduce__


def _raise(failed: _Failed) -> NoReturn:
    raise failed.error


def _in_queue(
    queue: str,
    callback: Callable[[torch.futures.Future[Any]], Any],
    done: torch.futures.Future[Any],
) -> Any:
    before = _RUNNING.queue
    _RUNNING.queue = queue
    try:
        return callback(done)
    finally:
        _RUNNING.queue = before
