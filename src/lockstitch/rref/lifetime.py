"""How long the value of a remote reference lives: the protocol, as two tables without any I/O.

A value lives on its *owner*. Every other worker that can reach it is a *user* and holds a *fork* of
its own. The owner keeps the value while it counts at least one fork. `OwnerSide` and `UserSide` are
told what happens (`rref.events`) and answer with what must be done; each worker has both.

Assumptions. Control messages may be lost, repeated and reordered. Messages with user values may be
late and are delivered once at most; when one is lost, its sender is told so (`Withdrawn`, or the
death of a worker), and what it carried is held until then. Workers stop, and do not come back under
the same generation.

Guarantees.
    G1  The owner learns of every fork's deletion.
    G2  A parent fork is not deleted before the owner counts its child.
    G3  The forks of a worker that died are reclaimed.
    G4  References to values of a worker that died are orphaned: every use of them fails.
Hence no value is freed while a live user holds it or a fork of it is under way, and each is freed
some time after the last fork was dropped.

How a fork gets counted (its *claim*); every message here but `RemoteCall` is sent until answered:
    owner creates    A value is made at the owner. It is counted once it is shared.
    owner → user     The owner counts the fork itself before the message leaves; nothing is claimed.
    remote()         `RemoteCall` claims the caller's fork, and any answer to it settles the claim.
                     If none comes soon, `ForkRequest` claims it again: a lost call stalls nothing.
    user → user      The parent remembers the child. The child sends `ForkRequest` to the owner,
                     who answers `ForkAccept`; then `ChildAccept` to the parent, who answers
                     `ChildNoted`.
    user → owner     In a request nothing is forked: the user *lends* its own fork, whose claim the
                     request repeats, and keeps it until the answer is there. In an answer the
                     parent remembers a child; the owner, which needs no fork of its own value, only
                     sends `ChildAccept`.
    fork of a fork   A child may fork before its own claim is settled: it is then a parent like any
                     other, and stays for the same reason (G2).
    deletion         `ForksDeleted`, answered by `DeletionsNoted`; one batch at a time per owner,
                     what is dropped meanwhile goes with the next one. A fork dropped before its
                     claim, or that of a child, is settled is deleted when both are.

Why a late or repeated claim cannot bring a deleted fork back, without remembering deleted forks:
each user numbers its claims (*serial*). A batch of deletions carries the *floor*, the smallest
serial whose claim is unsettled, and a deletion waits until the floor has passed its own serial. So
the owner can refuse every unknown fork below the floor, and remembers one number for each user.
A `RemoteCall` that timed out counts as settled: if the call comes after a deletion it is refused.

A death takes away what a worker held and what it answered for. Forks that it had passed on may
still be under way, so the owner, and parents that wait for it, let `GRACE_SECONDS` go by first.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstitch.rref.deaths import Dead, Mourning
from lockstitch.rref.events import (
    DIRECT,
    Abandoned,
    Arrived,
    Asked,
    Barren,
    Begin,
    Called,
    CameHome,
    Confirm,
    Created,
    Dropped,
    Forked,
    Free,
    Keep,
    Orphan,
    OwnerEvent,
    OwnerInstruction,
    Received,
    Send,
    Settled,
    Shared,
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


class OwnerSide:
    """Counts the forks of the values that live here. It only answers and never asks."""

    def __init__(self) -> None:
        self.forks: dict[GlobalId, dict[GlobalId, WorkerId | None]] = {}
        """Reference → fork → who holds it."""
        self._begun: set[GlobalId] = set()
        self._floors: dict[WorkerId, int] = {}
        self._dead = Dead()
        self._mourning = Mourning()

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
                todo += [*self._remove(forks), Send(user, DeletionsNoted(batch))]
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
            if not self.counts(reference, fork):
                continue
            forks = self.forks[reference]
            del forks[fork]
            if not forks:
                del self.forks[reference]
                self._begun.discard(reference)
                freed.append(Free(reference))
        return freed

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
        self._dead = Dead()
        self._mourning = Mourning()

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
            case Settled(fork):
                todo += self._settle(fork, State.CONFIRMED)
            case Abandoned(fork):
                todo += self._settle(fork, State.ABANDONED)
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
