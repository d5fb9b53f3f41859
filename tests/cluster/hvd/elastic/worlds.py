"""Workers that go from one world to the next, each a thread of the test."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from lockstitch.collectives import LocalSessions
from lockstitch.hvd.elastic import run_fn
from lockstitch.hvd.job import active

if TYPE_CHECKING:
    from collections.abc import Callable


class Died(BaseException):
    """What ends a worker that dies."""


class Worlds:
    """`plan[n][worker]` is the worker's rank in the nth world; who is not in it comes later or has
    died. A context manager."""

    def __init__(self, *plan: dict[int, int]) -> None:
        self.plan = plan
        self.sessions = [LocalSessions(len(ranks)) for ranks in plan]

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *_error: object) -> None:
        for sessions in self.sessions:
            sessions.shutdown()

    def train(
        self, make: Callable[[int], Any], train: Callable[[Any, Worker], Any]
    ) -> dict[int, Any]:
        """Each worker makes a state and trains with it; the results, or errors, by worker."""
        results: dict[int, Any] = {}

        def live(number: int) -> None:
            worker = Worker(self, number)
            try:
                results[number] = worker.live(make, train)
            except BaseException as error:  # noqa: BLE001 - compared by the test
                results[number] = error
                worker.leave()

        workers = sorted({worker for ranks in self.plan for worker in ranks})
        threads = [threading.Thread(target=live, args=(n,), daemon=True) for n in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class Worker:
    """One of them. `world` is the number of the world that it is in."""

    def __init__(self, worlds: Worlds, number: int) -> None:
        self.number = number
        self.world = next(n for n, ranks in enumerate(worlds.plan) if number in ranks)
        self._worlds = worlds
        self._active = None

    @property
    def rank(self) -> int:
        return self._worlds.plan[self.world][self.number]

    def die(self) -> None:
        """As if its process were killed."""
        self._worlds.sessions[self.world].kill(self.rank)
        raise Died

    def live(self, make, train):
        self._enter()
        try:
            return run_fn(lambda state: train(state, self), self._reset)(make(self.number))
        finally:
            self._active.__exit__(None, None, None)

    def leave(self) -> None:
        """Others must not wait for this one."""
        self._worlds.sessions[self.world][self.rank].shutdown()

    def _enter(self) -> None:
        self._active = active(self._worlds.sessions[self.world][self.rank])
        self._active.__enter__()

    def _reset(self) -> None:
        self.leave()
        self._active.__exit__(None, None, None)
        self.world += 1
        self._enter()
