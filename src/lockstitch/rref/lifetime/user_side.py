"""What a user knows of its forks: which are counted, which may go, whom to tell; without any I/O.

The protocol, and its guarantees G1 to G4, are in `rref.lifetime`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstitch.rref.dead_workers import DeadWorkers, RecentlyDead
from lockstitch.rref.events import (
    DIRECT,
    Abandoned,
    Arrived,
    CameHome,
    Confirm,
    Created,
    Dropped,
    Failed,
    Forked,
    Orphan,
    Received,
    Send,
    Settled,
    Tick,
    UserEvent,
    UserInstruction,
    Withdrawn,
    WorkerLost,
)
from lockstitch.rref.outbox import Outbox
from lockstitch.wire.messages import (
    ChildAccept,
    ChildNoted,
    DeletionsNoted,
    ForkAccept,
    ForkRequest,
    ForksDeleted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.ids import GlobalId, WorkerId

MAX_BATCH: Final = 1000


class State(enum.Enum):
    """What a user knows of a fork of its own."""

    PENDING = "the owner was told, and has not answered yet"
    CONFIRMED = "the owner counts it"
    ABANDONED = "remote() failed or timed out: perhaps the owner counts it, perhaps it never will"


@dataclass(slots=True)
class _Fork:
    reference: GlobalId
    owner: WorkerId
    parent: WorkerId | None
    serial: int
    state: State
    handles: int = 1
    """How many objects of the program stand for it; 0 when it may go."""
    children: set[GlobalId] = field(default_factory=set)
    """Forks made of it that nobody has accepted yet."""


@dataclass(slots=True)
class _Child:
    parent: GlobalId
    to: WorkerId | None


class UserSide:
    """Looks after the forks that this worker holds of other workers' values."""

    def __init__(self) -> None:
        self._forks: dict[GlobalId, _Fork] = {}
        self._children: dict[GlobalId, _Child] = {}
        self._outbox = Outbox()
        self._next_serial = 0
        self._next_batch = 0
        self._claims: dict[WorkerId, dict[int, GlobalId]] = {}
        """Unsettled claims by owner; their serials ascend, so the first one is the floor."""
        self._leaving: dict[WorkerId, dict[GlobalId, _Fork]] = {}
        """Forks that may be deleted as soon as the floor has passed them."""
        self._batches: dict[WorkerId, int] = {}
        """The batch of deletions that is on its way, by owner."""
        self._dead = DeadWorkers()
        self._mourning = RecentlyDead()

    # ------------------------------------------------------------ questions

    @property
    def wants_ticks(self) -> bool:
        """Whether anything here waits for time to pass."""
        return len(self._outbox) > 0 or len(self._mourning) > 0

    @property
    def is_empty(self) -> bool:
        """Whether no fork is held, and nobody need be told anything."""
        return not (self._forks or self._children or self._leaving or len(self._outbox))

    @property
    def is_under_way(self) -> bool:
        """Whether a claim or a child is unsettled."""
        return bool(self._claims or self._children)

    @property
    def held(self) -> list[GlobalId]:
        """The forks that objects of the program stand for, once for each object."""
        return [fork for fork, entry in self._forks.items() for _ in range(entry.handles)]

    @property
    def owners(self) -> set[WorkerId]:
        """The owners of the forks that are held."""
        return {entry.owner for entry in self._forks.values()}

    @property
    def pending(self) -> list[GlobalId]:
        """Forks whose owner has not answered yet."""
        return [fork for fork, entry in self._forks.items() if entry.state is State.PENDING]

    @property
    def unaccepted_children(self) -> int:
        """How many forks made here are still under way."""
        return len(self._children)

    def state(self, fork: GlobalId) -> State | None:
        """What is known of `fork`; None if it is gone."""
        entry = self._forks.get(fork)
        return None if entry is None else entry.state

    def serial(self, fork: GlobalId) -> int:
        """The number of the claim to `fork`, which requests that name it must carry."""
        entry = self._forks.get(fork)
        return entry.serial if entry else DIRECT

    # ------------------------------------------------------------ events

    def handle(self, event: UserEvent) -> list[UserInstruction]:
        """Takes in what happened; returns what to do about it, in order."""
        todo: list[UserInstruction] = []
        match event:
            case Arrived(sender, message):
                todo += self._arrived(sender, message)
            case Created(_, fork, owner) if owner in self._dead:
                todo.append(Orphan(fork))
            case Created(reference, fork, owner):
                self._claim(reference, fork, owner, None)  # the RemoteCall itself claims it first
            case Received():
                todo += self._received(event)
            case Settled(fork) | Abandoned(fork):
                is_counted = isinstance(event, Settled)
                todo += self._settle(fork, State.CONFIRMED if is_counted else State.ABANDONED)
            case Failed(fork):
                todo += self._give_up(fork)
            case CameHome(fork, parent):
                todo += self._accept(fork, parent)
            case Forked(parent, child, to) if parent in self._forks and to not in self._dead:
                self._forks[parent].children.add(child)
                self._children[child] = _Child(parent, to)
            case Withdrawn(_, fork):
                todo += self._child_accepted(fork)
            case Dropped(forks):
                todo += self._drop(forks)
            case WorkerLost(worker):
                todo += self._lost(worker)
            case Tick(now):
                todo += [*self._bereaved(self._mourning.over(now)), *self._outbox.tick(now)]
        return todo

    def _arrived(self, sender: WorkerId, message: object) -> list[UserInstruction]:
        match message:
            case ForkAccept(fork):
                return self._settle(fork, State.CONFIRMED)
            case ChildAccept(fork):
                return [*self._child_accepted(fork), Send(sender, ChildNoted(fork))]
            case ChildNoted(fork):
                self._outbox.settle(("accept", fork))
            case DeletionsNoted(batch):
                if self._batches.get(sender) == batch:
                    del self._batches[sender]
                    self._outbox.settle(("delete", sender))
                    return self._delete(sender)
        return []

    # ------------------------------------------------------------ claims

    def _claim(
        self, reference: GlobalId, fork: GlobalId, owner: WorkerId, parent: WorkerId | None
    ) -> Send:
        serial = self._next_serial
        self._next_serial += 1
        self._forks[fork] = _Fork(reference, owner, parent, serial, State.PENDING)
        self._claims.setdefault(owner, {})[serial] = fork
        return self._outbox.put(("claim", fork), Send(owner, ForkRequest(reference, fork, serial)))

    def _received(self, event: Received) -> list[UserInstruction]:
        reference, fork, owner, parent = event.reference, event.fork, event.owner, event.parent
        if owner in self._dead:
            return [Orphan(fork), *self._accept(fork, parent)]
        known = self._forks.get(fork)
        if known is not None:
            known.handles += 1
            return [] if known.state is State.PENDING else [Confirm(fork)]
        if parent == owner:
            self._forks[fork] = _Fork(reference, owner, None, DIRECT, State.CONFIRMED)
            return [Confirm(fork)]
        return [self._claim(reference, fork, owner, parent)]

    def _settle(self, fork: GlobalId, state: State) -> list[UserInstruction]:
        """The claim to `fork` is over, one way or the other; the floor may rise."""
        entry = self._forks.get(fork)
        if entry is None or entry.state is not State.PENDING:
            return []
        entry.state = state
        self._outbox.settle(("claim", fork))
        claims = self._claims[entry.owner]
        del claims[entry.serial]
        if not claims:
            del self._claims[entry.owner]
        confirmed = [Confirm(fork)] if state is State.CONFIRMED else []
        accepted = self._accept(fork, entry.parent) if entry.parent is not None else []
        self._leave_if_done(fork, entry)
        return [*confirmed, *accepted, *self._delete(entry.owner)]

    def _give_up(self, fork: GlobalId) -> list[UserInstruction]:
        """No object can be used that stands for it: the owner hears of that now, since others may
        wait for the value."""
        entry = self._forks.get(fork)
        if entry is None:
            return []
        entry.handles = 0
        if entry.state is State.PENDING:
            return self._settle(fork, State.ABANDONED)
        self._leave_if_done(fork, entry)
        return self._delete(entry.owner)

    def _accept(self, fork: GlobalId, parent: WorkerId) -> list[UserInstruction]:
        if parent in self._dead:
            return []
        return [self._outbox.put(("accept", fork), Send(parent, ChildAccept(fork)))]

    def _child_accepted(self, fork: GlobalId) -> list[UserInstruction]:
        child = self._children.pop(fork, None)
        entry = self._forks.get(child.parent) if child else None
        if child is None or entry is None:
            return []
        entry.children.discard(fork)
        self._leave_if_done(child.parent, entry)
        return self._delete(entry.owner)

    # ------------------------------------------------------------ deletion

    def _drop(self, forks: Iterable[GlobalId]) -> list[UserInstruction]:
        owners: dict[WorkerId, None] = {}
        for fork in forks:
            entry = self._forks.get(fork)
            if entry is not None and entry.handles > 0:
                entry.handles -= 1
                self._leave_if_done(fork, entry)
                owners[entry.owner] = None
        return [each for owner in owners for each in self._delete(owner)]

    def _leave_if_done(self, fork: GlobalId, entry: _Fork) -> None:
        """G2: a fork leaves when its claim is settled and so are those of its children."""
        if entry.handles == 0 and entry.state is not State.PENDING and not entry.children:
            del self._forks[fork]
            self._leaving.setdefault(entry.owner, {})[fork] = entry

    def _delete(self, owner: WorkerId) -> list[UserInstruction]:
        """G1: sends off the next batch, unless one is on its way."""
        leaving = self._leaving.get(owner)
        if not leaving or owner in self._batches:
            return []
        floor = next(iter(self._claims.get(owner, ())), self._next_serial)
        gone = [(entry.reference, fork) for fork, entry in leaving.items() if entry.serial < floor]
        gone = gone[:MAX_BATCH]
        if not gone:
            return []
        for _, fork in gone:
            del leaving[fork]
        if not leaving:
            del self._leaving[owner]
        self._batches[owner] = batch = self._next_batch
        self._next_batch += 1
        deletion = ForksDeleted(batch, floor, tuple(gone))
        return [self._outbox.put(("delete", owner), Send(owner, deletion))]

    # ------------------------------------------------------------ deaths

    def _lost(self, worker: WorkerId) -> list[UserInstruction]:
        """G4 at once; children that were under way to `worker` after a while."""
        self._dead.add(worker)
        self._mourning.add(worker)
        self._outbox.forget(worker)
        for table in (self._claims, self._leaving, self._batches):
            table.pop(worker, None)
        orphans = {fork: entry for fork, entry in self._forks.items() if entry.owner == worker}
        accepted: list[UserInstruction] = []
        for fork, entry in orphans.items():
            del self._forks[fork]
            for child in entry.children:
                del self._children[child]
            if entry.state is State.PENDING and entry.parent is not None:
                self._outbox.settle(("claim", fork))
                accepted += self._accept(fork, entry.parent)
        return [*map(Orphan, orphans), *accepted]

    def _bereaved(self, dead: set[WorkerId]) -> list[UserInstruction]:
        """Nobody will answer for the children that were under way to the dead."""
        children = [fork for fork, child in self._children.items() if child.to in dead]
        return [each for fork in children for each in self._child_accepted(fork)]
