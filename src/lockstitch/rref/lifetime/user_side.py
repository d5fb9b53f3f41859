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
        self._dropping: tuple[Iterable[GlobalId], list[GlobalId]] = ((), [])
        """What the program let go of, and what of it is still to be counted."""
        self._latest: UserEvent | None = None
        self._is_again = False
        """Whether an interrupt has ended the first attempt at the event that is told now, or at
        acting upon it."""
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
        self._is_again, self._latest = self._latest is event, event
        todo = self._handle(event)
        if self._is_again:
            todo += [each for owner in tuple(self._leaving) for each in self._delete(owner)]
        return todo

    def _handle(self, event: UserEvent) -> list[UserInstruction]:  # noqa: PLR0912 - a table
        todo: list[UserInstruction] = []
        match event:
            case Arrived(sender, message):
                todo += self._arrived(sender, message)
            case Created(_, fork, owner) if owner in self._dead:
                todo.append(Orphan(fork))
            case Created(reference, fork, owner):
                if fork not in self._forks:
                    self._forks[fork] = self._new_fork(reference, owner, None)
                self._claim(fork)  # the RemoteCall itself claims it first
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

    def _new_fork(self, reference: GlobalId, owner: WorkerId, parent: WorkerId | None) -> _Fork:
        if parent == owner:
            return _Fork(reference, owner, None, DIRECT, State.CONFIRMED)
        return _Fork(reference, owner, parent, self._next_serial, State.PENDING)

    def _claim(self, fork: GlobalId) -> Send:
        entry = self._forks[fork]
        owner, serial = entry.owner, entry.serial
        self._next_serial = max(self._next_serial, serial + 1)
        self._claims.setdefault(owner, {})[serial] = fork
        request = ForkRequest(entry.reference, fork, serial)
        return self._outbox.put(("claim", fork), Send(owner, request))

    def _received(self, event: Received) -> list[UserInstruction]:
        fork, owner, hold = event.fork, event.owner, event.hold
        if owner in self._dead:
            return [Orphan(fork), *self._accept(fork, event.parent)]
        known = self._forks.get(fork)
        is_new = known is None or self._is_again
        if known is None:
            known = self._new_fork(event.reference, owner, event.parent)
            self._forks[fork] = known
        elif hold is None or not hold.counts:
            known.handles += 1
        if hold is not None:
            hold.counts = True
        if known.state is not State.PENDING:
            return [Confirm(fork)]
        return [self._claim(fork)] if is_new else []

    def _settle(self, fork: GlobalId, state: State) -> list[UserInstruction]:
        """The claim to `fork` is over, one way or the other; the floor may rise."""
        entry = self._forks.get(fork)
        if entry is None:
            return []
        if entry.state is not State.PENDING and not self._is_again:
            # Who was struck by an interrupt takes in the same message again.
            return [Confirm(fork)] if entry.state is State.CONFIRMED else []
        entry.state = state
        self._outbox.settle(("claim", fork))
        claims = self._claims.get(entry.owner)
        if claims is not None:
            claims.pop(entry.serial, None)
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
        if entry.state is State.PENDING or self._is_again:
            return self._settle(fork, State.ABANDONED)
        self._leave_if_done(fork, entry)
        return self._delete(entry.owner)

    def _accept(self, fork: GlobalId, parent: WorkerId) -> list[UserInstruction]:
        if parent in self._dead:
            return []
        return [self._outbox.put(("accept", fork), Send(parent, ChildAccept(fork)))]

    def _child_accepted(self, fork: GlobalId) -> list[UserInstruction]:
        child = self._children.get(fork)
        entry = self._forks.get(child.parent) if child else None
        todo: list[UserInstruction] = []
        if child is not None and entry is not None:
            entry.children.discard(fork)
            self._leave_if_done(child.parent, entry)
            todo = self._delete(entry.owner)
        self._children.pop(fork, None)
        return todo

    # ------------------------------------------------------------ deletion

    def _drop(self, forks: Iterable[GlobalId]) -> list[UserInstruction]:
        if not self._is_again or self._dropping[0] is not forks:
            self._dropping = forks, list(forks)
        rest = self._dropping[1]
        while rest:
            entry = self._forks.get(rest[-1])
            if entry is not None and entry.handles > 0:
                entry.handles -= 1
            del rest[-1]
        owners: dict[WorkerId, None] = {}
        for fork in forks:
            entry = self._forks.get(fork)
            if entry is not None:
                self._leave_if_done(fork, entry)
                owners[entry.owner] = None
        return [each for owner in owners for each in self._delete(owner)]

    def _leave_if_done(self, fork: GlobalId, entry: _Fork) -> None:
        """G2: a fork leaves when its claim is settled and so are those of its children."""
        if entry.handles == 0 and entry.state is not State.PENDING and not entry.children:
            leaving = self._leaving.setdefault(entry.owner, {})
            leaving[fork] = entry
            del self._forks[fork]

    def _delete(self, owner: WorkerId) -> list[UserInstruction]:
        """G1: sends off the next batch, unless one is on its way."""
        leaving = self._leaving.get(owner)
        if not leaving:
            self._leaving.pop(owner, None)
            return []
        if owner in self._batches:
            return []
        floor = next(iter(self._claims.get(owner, ())), self._next_serial)
        gone = [(entry.reference, fork) for fork, entry in leaving.items() if entry.serial < floor]
        gone = gone[:MAX_BATCH]
        if not gone:
            return []
        batch = self._next_batch
        deletion = Send(owner, ForksDeleted(batch, floor, tuple(gone)))
        self._outbox.put(("delete", owner), deletion)
        self._batches[owner] = batch
        self._next_batch = batch + 1
        for _, fork in gone:  # whoever is struck in it leaves forks that are deleted once more
            del leaving[fork]
        if not leaving:
            del self._leaving[owner]
        return [deletion]

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
