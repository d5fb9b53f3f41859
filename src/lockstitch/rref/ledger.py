"""The two tables of one worker behind one lock, and what follows from them.

The lock is held for deciding only. Messages are sent, callbacks run and values let go after it was
given back (`Actions`). What the agent's reader brings is acted upon by a task spawned to run right
after it, since sending may have to connect first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from lockstitch.errors import LockstitchError, RRefError
from lockstitch.interrupts import elsewhere
from lockstitch.rref.events import (
    Arrived,
    Asked,
    Barren,
    Begin,
    Called,
    Confirm,
    Created,
    Free,
    Keep,
    OwnerEvent,
    OwnerInstruction,
    Received,
    Send,
    Tick,
    UserEvent,
    UserInstruction,
    WorkerLost,
)
from lockstitch.rref.lifetime import OwnerSide, State, UserSide
from lockstitch.rref.user_fork import UserFork
from lockstitch.rref.values import OwnedValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import GlobalId, WorkerId, WorkerInfo
    from lockstitch.runtime.worker import Worker
    from lockstitch.wire.messages import Message

E = TypeVar("E")

TICK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class ReferenceStatistics:
    """A count of the references that a worker has to do with at a moment."""

    owned: int
    """Values of this worker that others can reach."""
    forks: int
    """By how many forks they can."""
    used: int
    """Objects here that stand for other workers' values."""
    pending: int
    """Forks held here that the owner has not confirmed yet."""
    under_way: int
    """Forks made here of other workers' values that nobody has accepted yet."""
    creating: int
    """Calls of `remote` that have not been answered yet."""


@dataclass(slots=True)
class Actions:
    """Actions to be done after the lock was given back."""

    sends: list[Send] = field(default_factory=list)
    confirmed: list[UserFork] = field(default_factory=list)
    """Forks for whose confirmation nobody waits."""
    calls: list[Callable[[], None]] = field(default_factory=list)
    """To be made once, and so by no thread that may be interrupted."""
    freed: list[OwnedValue | None] = field(default_factory=list)
    """Values to be let go with this object: their destructors are the user's."""
    may_begin: bool = False
    """Whether the remote call just told may run."""


class Ledger:
    """The two tables of one worker behind one lock; it carries out what follows from them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._agent = worker.agent
        # Reentrant, since the garbage collector may run a user's finalizer while we hold it, and
        # that may use a reference.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        """How many threads want to know of changes."""
        self._owner = OwnerSide()
        self._user = UserSide()
        self._values: WeakValueDictionary[GlobalId, OwnedValue] = WeakValueDictionary()
        self._shared: dict[GlobalId, OwnedValue] = {}
        self._forks: WeakValueDictionary[GlobalId, UserFork] = WeakValueDictionary()
        # A function that waits for a fork's confirmation hangs on that fork alone.
        self._awaited: dict[GlobalId, UserFork] = {}
        self._creating: set[GlobalId] = set()
        self._struck: tuple[Callable[[Any], Actions | None], object] | None = None
        """The event whose telling an interrupt has ended: it is told again before any other."""
        self._ticks = False
        self._closed = False

    # ------------------------------------------------------------ deciding

    def tell_owner(self, event: OwnerEvent) -> None:
        """Something happened to a value of this worker."""
        self._act(self._decide(self._follows_for_owner, event))

    def tell_user(self, event: UserEvent) -> None:
        """Something happened to a reference to another worker's value."""
        try:
            actions = self._decide(self._follows_for_user, event)
            if actions is not None and actions.calls:
                self._act_soon(actions)
            else:
                self._act(actions)
        except BaseException:  # an interrupt
            elsewhere(self._make_up, ())
            raise

    def tell_user_soon(self, event: UserEvent) -> None:
        """`tell_user` for threads that must not block: the thread pool does what is to be done."""
        try:
            self._act_soon(self._decide(self._follows_for_user, event))
        except BaseException:  # an interrupt
            elsewhere(self._make_up, ())
            raise

    def _make_up(self) -> None:
        """An interrupt has struck. What was to be sent, and is answered, is sent again by itself;
        this sees to the rest."""
        with self._lock:
            self._tell_struck()
            awaited = list(self._awaited.values())
            confirmed = [each for each in awaited if self._user.state(each.fork) is State.CONFIRMED]
        self._act_soon(Actions(calls=[partial(self._confirm, each) for each in confirmed]))

    def claim(self, event: Called | Asked) -> OwnedValue | None:
        """The value that a request names; None if the request comes too late, or a second time."""
        with self._lock:
            actions = self._decide(self._follows_for_owner, event)
            if isinstance(event, Called):
                is_heard = actions is not None and actions.may_begin
            else:
                is_heard = self._owner.counts(event.reference, event.fork)
            value = self._shared[event.reference] if is_heard else None
        self._act(actions)
        return value

    def _decide(self, follows: Callable[[E], Actions | None], event: E) -> Actions | None:
        """Returns what `follows` from `event`; None where nothing does."""
        with self._lock:
            self._tell_struck()
            try:
                return follows(event)
            except Exception:
                raise
            except BaseException:  # an interrupt
                self._struck = (follows, event)
                elsewhere(self._make_up, ())
                raise

    def _tell_struck(self) -> None:
        if self._struck is not None:
            follows, event = self._struck
            try:
                self._act_soon(follows(event))
            except Exception as error:  # noqa: BLE001 - reported; it must not be told for ever
                self._agent.report(error)
            self._struck = None

    def _follows_for_owner(self, event: OwnerEvent) -> Actions | None:
        todo = self._owner.handle(event)
        self._after_change(self._owner)
        return self._actions_of_owner(todo) if todo else None

    def _actions_of_owner(self, todo: list[OwnerInstruction]) -> Actions:
        actions = Actions()
        for each in todo:
            match each:
                case Send():
                    actions.sends.append(each)
                case Keep(reference):
                    self._shared[reference] = self._find(reference)
                case Free(reference):
                    actions.freed.append(self._shared.pop(reference, None))
                case Begin():
                    actions.may_begin = True
                case Barren(reference):
                    why = RRefError(
                        f"a value that worker {self._worker.info.name!r} was to make was never "
                        "made: the call of rpc.remote that asks for it got lost, or its caller "
                        f"died before ({reference})"
                    )
                    actions.calls.append(partial(self._shared[reference].fail, why))
        return actions

    def _follows_for_user(self, event: UserEvent) -> Actions | None:
        todo = self._user.handle(event)
        self._after_change(self._user)
        actions = self._actions_of_user(todo) if todo else None
        if isinstance(event, Received) and self._user.state(event.fork) is State.PENDING:
            fork = self._forks.get(event.fork)
            if fork is not None:  # as after an interrupt, which has ended the making of its object
                self._awaited[event.fork] = fork
        return actions

    def _actions_of_user(self, todo: list[UserInstruction]) -> Actions:
        actions = Actions()
        for each in todo:
            if isinstance(each, Send):
                actions.sends.append(each)
                continue
            fork = self._awaited.get(each.fork) or self._forks.get(each.fork)
            if fork is None:
                continue
            if isinstance(each, Confirm):
                if each.fork in self._awaited:
                    actions.calls.append(partial(self._confirm, fork))
                else:
                    actions.confirmed.append(fork)
            else:
                actions.calls.append(fork.orphan)
                self._awaited.pop(each.fork, None)
        return actions

    def _after_change(self, side: OwnerSide | UserSide) -> None:
        if self._waiting:
            self._changed.notify_all()
        if not self._ticks and not self._closed and side.wants_ticks:
            self._agent.call_later(TICK_SECONDS, self._tick)
            self._ticks = True

    # ------------------------------------------------------------ acting

    def _act(self, actions: Actions | None) -> None:
        if actions is None:
            return
        for fork in actions.confirmed:
            fork.confirm()
        for call in actions.calls:
            call()
        for send in actions.sends:
            self._send(send.to, send.message)

    def _act_soon(self, actions: Actions | None) -> None:
        if actions is None:
            return
        while actions.confirmed:
            actions.confirmed.pop().confirm()
        if actions.sends or actions.calls or actions.freed:
            self._agent.spawn(lambda: self._act(actions))

    def _confirm(self, fork: UserFork) -> None:
        fork.confirm()
        self._awaited.pop(fork.fork, None)

    def _send(self, to: WorkerId, message: Message) -> None:
        try:
            self._agent.send(to, message)
        except (ConnectionError, LockstitchError) as error:
            # No harm: either the worker is gone, or the message will be sent again.
            self._agent.note("reference.unsent", f"{message} to {to}: {error}")

    # ------------------------------------------------------------ what the agent brings

    def arrived_at_owner(self, sender: WorkerId, message: Message) -> None:
        """A control message for the owner came; on the reading thread."""
        self._act_soon(self._decide(self._follows_for_owner, Arrived(sender, message)))

    def arrived_at_user(self, sender: WorkerId, message: Message) -> None:
        """A control message for a user came; on the reading thread."""
        self._act_soon(self._decide(self._follows_for_user, Arrived(sender, message)))

    def worker_lost(self, worker: WorkerId) -> None:
        """Takes in that a worker is gone."""
        self.tell_owner(WorkerLost(worker))
        self.tell_user(WorkerLost(worker))

    def tick(self, now: float) -> None:
        """Sends again what is still unanswered, and gives up what the dead held."""
        self._act_soon(self._decide(self._follows_for_owner, Tick(now)))
        self._act_soon(self._decide(self._follows_for_user, Tick(now)))

    def _tick(self) -> None:
        with self._lock:
            self._ticks = False
        self.tick(self._worker.clock.now())

    def close(self) -> None:
        """No ticks from now on."""
        with self._lock:
            self._closed = True

    # ------------------------------------------------------------ values and forks by name

    def add_value(self, value: OwnedValue) -> None:
        """A new value of this worker; it is counted once it is shared."""
        with self._lock:
            self._values[value.reference] = value

    def find_value(self, reference: GlobalId) -> OwnedValue:
        """The value of that name, or a place for one that is still to come."""
        with self._lock:
            return self._find(reference)

    def _find(self, reference: GlobalId) -> OwnedValue:
        value = self._values.get(reference)
        if value is None:
            value = self._values[reference] = OwnedValue(reference)
            if reference[:2] == self._worker.info.worker:
                gone = "is gone: nobody held a reference to it any more"
                owner = self._worker.info.name
                value.fail(RRefError(f"the value on worker {owner!r} {gone} ({reference})"))
        return value

    def fork(self, reference: GlobalId, fork: GlobalId, owner: WorkerInfo) -> UserFork:
        """Returns what is known of that fork; begins to know it when it is new."""
        with self._lock:
            known = self._forks.get(fork)
            if known is None:
                known = self._forks[fork] = UserFork(reference, fork, owner, self._worker.info.name)
            return known

    def claim_new(self, fork: UserFork) -> int:
        """Claims a fork of a value that its owner is about to be asked to make; returns the number
        of the claim."""
        with self._lock:
            created = Created(fork.reference, fork.fork, fork.owner.worker)
            actions = self._decide(self._follows_for_user, created)
            serial = self._user.serial(fork.fork)
        self._act(actions)
        return serial

    def serial(self, fork: GlobalId) -> int:
        """The number of the claim to `fork`, for requests that name it."""
        with self._lock:
            return self._user.serial(fork)

    def held(self) -> tuple[list[UserFork], tuple[GlobalId, ...]]:
        """All forks that are known, and those that objects stand for, once for each object."""
        with self._lock:
            return list(self._forks.values()), tuple(self._user.held)

    def creation_began(self, reference: GlobalId) -> None:
        """Notes that a `remote` was called."""
        self._creating.add(reference)

    def creation_ended(self, reference: GlobalId) -> None:
        """Notes that a `remote` was answered, or failed; harmless when repeated."""
        self._creating.discard(reference)

    # ------------------------------------------------------------ waiting, and looking inside

    def wait_until_settled(self, deadline: float | None) -> bool:
        """Waits until owners have confirmed and children were accepted; False if time was over."""
        return self._wait_until(lambda: not self._user.is_under_way, deadline)

    def wait_until_empty(self, deadline: float | None) -> bool:
        """Waits until nothing is held of others, nor by others; False if the time was over."""
        return self._wait_until(lambda: self._user.is_empty and not self._owner.forks, deadline)

    def _wait_until(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        with self._agent.blocked(), self._lock:
            self._waiting += 1
            try:
                while not condition():
                    if deadline is not None and self._worker.clock.now() >= deadline:
                        return False
                    self._changed.wait(TICK_SECONDS)
            finally:
                self._waiting -= 1
            return True

    def partners(self) -> set[WorkerId]:
        """The workers that hold forks of values here, and the owners of those held here."""
        with self._lock:
            return self._owner.holders | self._user.owners

    def leaks(self) -> list[str]:
        """A line for each fork that keeps a value of this worker alive."""
        with self._lock:
            return [
                f"Leaking RRef {reference} with fork Id {fork}"
                for reference, forks in self._owner.forks.items()
                for fork in forks
            ]

    def statistics(self) -> ReferenceStatistics:
        """A picture of the moment."""
        with self._lock:
            return ReferenceStatistics(
                owned=len(self._owner.forks),
                forks=sum(map(len, self._owner.forks.values())),
                used=len(self._user.held),
                pending=len(self._user.pending),
                under_way=self._user.unaccepted_children,
                creating=len(self._creating),
            )
