"""The workers that a rank coordinator has started, counted by what they do.

The coordinator handles an event for each worker, and asks at each how many train, how many wait,
and how many are about to come. Here these are kept as they change, so that no answer takes longer
the more workers there are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstitch.launcher_link.slots import Slot


@dataclass(slots=True, eq=False)
class KnownWorker:
    """A worker as the coordinator knows it. It is changed by `WorkerBook.change` alone."""

    number: int
    slot: Slot
    started_at: float
    is_ready: bool = False
    ready_at: float = 0.0
    rank: int | None = None
    """In the last world that it was in; None for a newcomer."""
    is_in_world: bool = False
    is_dismissed: bool = False
    """Its end, however it comes, is no failure and no success."""


class WorkerBook:
    """All workers that have been started and have not ended. The dictionaries are by number, and in
    the order in which workers came there; they are to be read only."""

    def __init__(self) -> None:
        self.all: dict[int, KnownWorker] = {}
        self.in_world: dict[int, KnownWorker] = {}
        self.waiting: dict[int, KnownWorker] = {}
        """Those that are ready and not dismissed."""
        self.ready_newcomers: dict[int, KnownWorker] = {}
        """Those of them that have never had a rank, the first that came first."""
        self.with_state: dict[int, KnownWorker] = {}
        """Those that have had a rank and are not dismissed."""
        self.slots: Counter[Slot] = Counter()
        """How many workers each slot has: two where one is being ended."""
        self.in_use = 0
        """How many are not dismissed."""
        self._starting: Counter[str] = Counter()
        self._ready: Counter[str] = Counter()
        self._settling: set[str] = set()

    def __repr__(self) -> str:
        return (
            f"<WorkerBook · {len(self.all)} workers, {len(self.in_world)} in the world, "
            f"{len(self.waiting)} waiting>"
        )

    @property
    def is_settling(self) -> bool:
        """Whether a host has both newcomers that are ready and newcomers that are not."""
        return bool(self._settling)

    def add(self, worker: KnownWorker) -> None:
        """Enters a worker that is being started."""
        self._enter(worker, 1)

    def change(self, worker: KnownWorker, **changes: Any) -> None:
        """Gives attributes of a worker other values."""
        self._enter(worker, -1)
        for name, value in changes.items():
            setattr(worker, name, value)
        self._enter(worker, 1)

    def remove(self, number: int) -> KnownWorker | None:
        """Strikes out a worker that has ended; returns it, None where it is not known."""
        worker = self.all.get(number)
        if worker is not None:
            self._enter(worker, -1)
        return worker

    def _enter(self, worker: KnownWorker, sign: int) -> None:
        is_newcomer = worker.rank is None and not worker.is_dismissed
        for group, belongs in (
            (self.all, True),
            (self.in_world, worker.is_in_world),
            (self.waiting, worker.is_ready and not worker.is_dismissed),
            (self.ready_newcomers, is_newcomer and worker.is_ready),
            (self.with_state, worker.rank is not None and not worker.is_dismissed),
        ):
            if belongs and sign > 0:
                group[worker.number] = worker
            elif belongs:
                del group[worker.number]
        _count(self.slots, worker.slot, sign)
        self.in_use += sign * (not worker.is_dismissed)
        if is_newcomer:
            self._note_newcomer(worker, sign)

    def _note_newcomer(self, worker: KnownWorker, sign: int) -> None:
        host = worker.slot.host
        _count(self._ready if worker.is_ready else self._starting, host, sign)
        if self._ready[host] and self._starting[host]:
            self._settling.add(host)
        else:
            self._settling.discard(host)


def _count(counter: Counter[Any], key: object, sign: int) -> None:
    counter[key] += sign
    if not counter[key]:
        del counter[key]
