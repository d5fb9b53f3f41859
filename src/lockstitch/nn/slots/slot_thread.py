"""The thread of a slot, which does one task after the other until the slot is closed or dropped."""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from lockstitch.errors import SlotDiedError
from lockstitch.nn.slots.failures import describe
from lockstitch.nn.slots.nesting import mark_inside

if TYPE_CHECKING:
    from collections.abc import Callable

Work: TypeAlias = "Callable[[], Any]"
"""Something to do, which returns an answer and raises nothing. It must not keep the slot alive,
which ends when nobody wants it any more."""
Delivery: TypeAlias = "Callable[[Any], object]"
"""Takes the answer."""


class SlotThread:
    """The thread of the slot called `name`. `threads`: how many intra-op threads it may use; None
    leaves that as it is for the whole process."""

    def __init__(self, name: str, threads: int | None = None) -> None:
        self._name = name
        self._tasks: SimpleQueue[tuple[Work, Delivery] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._thread = threading.Thread(
            target=_serve, args=(self._tasks, threads), name=f"lockstitch-{name}", daemon=True
        )
        self._thread.start()
        self._end = weakref.finalize(self, self._tasks.put, None)

    @property
    def is_alive(self) -> bool:
        """Whether it takes tasks."""
        return self._end.alive and self._thread.is_alive()

    def check_alive(self) -> None:
        """Raises `SlotDiedError` where it takes no tasks any more."""
        if not self.is_alive:
            raise SlotDiedError(self._name, "its thread has ended")

    def hand_over(self, work: Work, deliver: Delivery) -> None:
        """Has the thread do that work, after all that was handed over before, and deliver the
        answer. May be called from any thread."""
        with self._gate:  # so that nothing is put behind the end
            self.check_alive()
            self._tasks.put((work, deliver))

    def close(self) -> None:
        """Waits until everything is done, and ends the thread. Harmless when repeated."""
        with self._gate:
            self._end()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _serve(tasks: SimpleQueue[tuple[Work, Delivery] | None], threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
    while (task := tasks.get()) is not None:
        work, deliver = task
        del task
        answer = work()
        del work  # whoever has the answer finds nothing of it left
        deliver(answer)
        del deliver, answer


def attempt(function: Callable[[], Any], name: str) -> Any:
    """What `function` returns in the slot `name`, or a `Failure` of what it raises."""
    mark_inside()
    try:
        return function()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the caller waits for it
        return describe(error, name, crosses=False)
