"""Several autograd contexts that are open at once, each in a thread of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from lockstitch import autograd
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    from collections.abc import Callable


class HeldContexts:
    """Opens a context for each `run`, and holds all of them open until the end of the block."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._worker = current_worker()
        self._may_end = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> HeldContexts:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._may_end.set()
        for thread in self._threads:
            thread.join()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns `function(context_id, *args)`, run in a new context; raises what it raises."""
        has_run = threading.Event()
        outcome: list[Any] = []

        def hold() -> None:
            with self._worker.active(), autograd.context() as context_id:
                self.ids.append(context_id)
                try:
                    outcome.append(function(context_id, *args))
                except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                    outcome.append(error)
                has_run.set()
                self._may_end.wait()

        self._threads.append(threading.Thread(target=hold))
        self._threads[-1].start()
        has_run.wait()
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]
