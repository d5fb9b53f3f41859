"""Which workers died, and for how long what they held is kept all the same.

A worker that died may have passed references on just before, in messages that are still under way.
So what it held is given up only when a while has passed, in which those can report themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lockstitch.ids import WorkerId

GRACE_SECONDS: Final = 5.0


class DeadWorkers:
    """The workers that have died: of each rank the last generation that died, and all before it."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, worker: WorkerId) -> None:
        """`worker`, and every life of its rank before, is over."""
        self._last[worker.rank] = max(worker.generation, self._last.get(worker.rank, -1))

    def __contains__(self, worker: WorkerId | None) -> bool:
        return worker is not None and worker.generation <= self._last.get(worker.rank, -1)


class RecentlyDead:
    """Workers that died, until `GRACE_SECONDS` after the first tick since then."""

    def __init__(self) -> None:
        self._until: dict[WorkerId, float | None] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, worker: WorkerId) -> None:
        """Notes that `worker` has died; its time begins with the next tick."""
        self._until.setdefault(worker, None)

    def over(self, now: float) -> set[WorkerId]:
        """Returns the workers whose time is over, and forgets them."""
        for worker, until in self._until.items():
            if until is None:
                self._until[worker] = now + GRACE_SECONDS
        over = {dead for dead, until in self._until.items() if until is not None and until <= now}
        for worker in over:
            del self._until[worker]
        return over
