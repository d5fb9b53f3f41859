"""What ranks tell the program that has started them, while they run: `log` on a rank, callbacks in
the program.

What is logged goes through a queue of Ray's to a thread of the program, which calls the callbacks.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from lockstitch.ray.engine import find_ray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOOK_SECONDS: Final = 0.2


class LogQueue:
    """The queue to which this process logs, if anybody listens."""

    def __init__(self) -> None:
        self._queue: Any = None

    def configure(self, queue: Any) -> None:
        """Has `put` write to this queue; None: to none."""
        self._queue = queue

    def put(self, value: Any) -> None:
        """Writes a value, if anybody listens."""
        if self._queue is not None:
            self._queue.put(value)


LOG: Final = LogQueue()


def log(info_dict: Any, chief_only: bool = True) -> None:
    """Has the callbacks of `RayExecutor.run` called with a value, in the program that runs it;
    does nothing where it was given none. `chief_only`: only what rank 0 logs counts."""
    if not chief_only or os.environ.get("HOROVOD_RANK", "0") == "0":
        LOG.put(info_dict)


class CallbackThread:
    """Calls each of `callbacks` with each value that ranks log; a context manager. `queue` is what
    they write to; None where there are no callbacks. At the end all has been delivered; what a
    callback has raised first is raised then, and nothing is delivered after it."""

    def __init__(self, callbacks: Sequence[Callable[[Any], object]] | None) -> None:
        self._callbacks = list(callbacks or ())
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.queue: Any = None

    def __enter__(self) -> CallbackThread:
        if self._callbacks:
            # Where this program runs: on another node it would be lost with that.
            node = find_ray().get_runtime_context().get_node_id()
            strategy = find_ray("util.scheduling_strategies").NodeAffinitySchedulingStrategy
            place = {"num_cpus": 0, "scheduling_strategy": strategy(node, soft=False)}
            self.queue = find_ray("util.queue").Queue(actor_options=place)
            self._thread = threading.Thread(target=self._run, name="lockstitch callbacks")
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self.queue.shutdown()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            self._deliver()
        except BaseException as error:  # noqa: BLE001 - whatever a callback raises
            self._error = error

    def _deliver(self) -> None:
        empty = find_ray("util.queue").Empty
        while True:
            was_over = self._is_over.is_set()  # before looking: all was written by then
            try:
                value = self.queue.get(timeout=_LOOK_SECONDS)
            except empty:
                if was_over:
                    return
                continue
            for callback in self._callbacks:
                callback(value)
