"""What an owner counts: who holds which of its values, as a table without any I/O.

The protocol, and its guarantees G1 to G4, are in `rref.lifetime`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.rref.dead_workers import DeadWorkers, RecentlyDead
from lockstitch.rref.events import (
    Arrived,
    Asked,
    Barren,
    Begin,
    Called,
    Free,
    Keep,
    OwnerEvent,
    OwnerInstruction,
    Send,
    Shared,
    Tick,
    Withdrawn,
    WorkerLost,
)
from lockstitch.wire.messages import DeletionsNoted, ForkAccept, ForkRequest, ForksDeleted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstitch.ids import GlobalId, WorkerId


class OwnerSide:
    """Counts the forks of the values that live here. It only answers and never asks."""

    def __init__(self) -> None:
        self.forks: dict[GlobalId, dict[GlobalId, WorkerId | None]] = {}
        """Reference → fork → who holds it."""
        self._begun: set[GlobalId] = set()
        self._floors: dict[WorkerId, int] = {}
        self._dead = DeadWorkers()
        self._mourning = RecentlyDead()
        self._latest: OwnerEvent | None = None
        self._is_again = False
        """Whether an interrupt has ended the first attempt at the event that is told now, or at
        acting upon it."""

    @property
    def wants_ticks(self) -> bool:
        """Whether anything here waits for time to pass."""
        return len(self._mourning) > 0

    @property
    def holders(self) -> set[WorkerId]:
        """The workers that hold forks."""
        holders = {holder for forks in self.forks.values() for holder in forks.values()}
        return {holder for holder in holders if holder is not None}

    def counts(self, reference: GlobalId, fork: GlobalId) -> bool:
        """Whether `fork` is known and alive."""
        return fork in self.forks.get(reference, ())

    def handle(self, event: OwnerEvent) -> list[OwnerInstruction]:
        """Takes in what happened; returns what to do about it, in order."""
        self._is_again, self._latest = self._latest is event, event
        return self._handle(event)

    def _handle(self, event: OwnerEvent) -> list[OwnerInstruction]:
        todo: list[OwnerInstruction] = []
        match event:
            case Arrived(user) | Asked(user) | Called(user) if user in self._dead:
                pass
            case Arrived(user, ForkRequest(reference, fork, serial)):
                todo += self._claim(user, reference, fork, serial)
                if self.counts(reference, fork):
                    todo.append(Send(user, ForkAccept(fork)))
            case Arrived(user, ForksDeleted(batch, floor, forks)):
                self._floors[user] = max(floor, self._floors.get(user, 0))
                barren = self._given_up(user, forks)
                todo += [*barren, *self._remove(forks), Send(user, DeletionsNoted(batch))]
            case Asked(user, reference, fork, serial):
                todo += self._claim(user, reference, fork, serial)
            case Called(user, reference, fork, serial):
                todo += self._claim(user, reference, fork, serial)
                if self.counts(reference, fork) and reference not in self._begun:
                    self._begun.add(reference)
                    todo.append(Begin(reference))
            case Shared(reference, fork, holder) if holder not in self._dead:
                todo += self._count(reference, fork, holder)
            case Withdrawn(reference, fork):
                todo += self._remove([(reference, fork)])
            case WorkerLost(worker):
                self._dead.add(worker)
                self._mourning.add(worker)
                self._floors.pop(worker, None)
            case Tick(now):
                for worker in self._mourning.over(now):
                    todo += self._reclaim(worker)
        return todo

    def _claim(
        self, user: WorkerId, reference: GlobalId, fork: GlobalId, serial: int
    ) -> list[OwnerInstruction]:
        """Counts `fork`, unless it is counted already or was deleted before."""
        if self.counts(reference, fork) or serial < self._floors.get(user, 0):
            return []
        return self._count(reference, fork, user)

    def _count(
        self, reference: GlobalId, fork: GlobalId, holder: WorkerId | None
    ) -> list[OwnerInstruction]:
        forks = self.forks.setdefault(reference, {})
        forks[fork] = holder
        if len(forks) > 1:
            return []
        barren = reference.worker in self._dead
        return [Keep(reference), Barren(reference)] if barren else [Keep(reference)]

    def _remove(self, pairs: Iterable[tuple[GlobalId, GlobalId]]) -> list[OwnerInstruction]:
        freed: list[OwnerInstruction] = []
        for reference, fork in pairs:
            forks = self.forks.get(reference)
            if forks is not None and fork in forks:
                del forks[fork]
                if forks:
                    continue
                del self.forks[reference]
            elif forks is not None or not self._is_again:
                continue
            self._begun.discard(reference)
            freed.append(Free(reference))
        return freed

    def _given_up(
        self, user: WorkerId, deleted: Sequence[tuple[GlobalId, GlobalId]]
    ) -> list[OwnerInstruction]:
        """Values that `user` was to have made here, and is done with before its call has come: the
        floor has passed the call, which would be refused."""
        gone = frozenset(deleted)
        return [
            Barren(reference)
            for reference in dict.fromkeys(reference for reference, _ in deleted)
            if reference.worker == user and reference not in self._begun
            if all(
                holder != user or (reference, fork) in gone
                for fork, holder in self.forks.get(reference, {}).items()
            )
            and reference in self.forks
        ]

    def _reclaim(self, dead: WorkerId) -> list[OwnerInstruction]:
        """G3, once the forks that `dead` had passed on have had their time to report."""
        held = [
            (reference, fork)
            for reference, forks in self.forks.items()
            for fork, holder in forks.items()
            if holder == dead
        ]
        freed = self._remove(held)
        barren = [
            Barren(reference)
            for reference in self.forks
            if reference.worker == dead and reference not in self._begun
        ]
        return [*freed, *barren]
