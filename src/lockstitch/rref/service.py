"""Plugs references into one worker.

program ─► RRef ─► ReferenceService ─► Ledger (tables under a lock) ─► messages, callbacks
finalizers ─► FinalizerQueue ─────────────────►┘  ▲
agent ─► control messages, deaths, ticks ─┘        agent ─► ValueServer (makes, fetches)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from lockstitch.attach.values import Counter
from lockstitch.clock import UNSET_TIMEOUT
from lockstitch.errors import PeerDiedError, RpcTimeoutError, RRefError
from lockstitch.ids import GlobalId, IdSource, WorkerId
from lockstitch.interrupts import elsewhere
from lockstitch.rref.creation import Creation
from lockstitch.rref.events import (
    DIRECT,
    Abandoned,
    Asked,
    CameHome,
    Dropped,
    Failed,
    Forked,
    Hold,
    Received,
    Settled,
    Shared,
    Withdrawn,
)
from lockstitch.rref.finalizer_queue import FinalizerQueue
from lockstitch.rref.home import LOAN_LENGTH, Home, Loan, State
from lockstitch.rref.ledger import Ledger, ReferenceStatistics
from lockstitch.rref.rref import RRef
from lockstitch.rref.serving import ValueServer
from lockstitch.rref.values import TIMED_OUT, OwnedValue
from lockstitch.runtime.outgoing import to_several
from lockstitch.wire.messages import (
    ChildAccept,
    ChildNoted,
    DeletionsNoted,
    Fetch,
    ForkAccept,
    ForkRequest,
    ForksDeleted,
    RemoteCall,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.memory.host_copies import HostCopies
    from lockstitch.rref.user_fork import UserFork
    from lockstitch.runtime.outgoing import MakeCall
    from lockstitch.runtime.worker import Worker
    from lockstitch.wire.encodings import PickleSession, UnpickleSession

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 5.0


class ReferenceService(Home[RRef[Any]]):
    """References of one worker: makes them, sends them off, receives and fetches them."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._agent = worker.agent
        self._next_id = IdSource(worker.id)
        self._ledger = Ledger(worker)
        self._finalizer_queue = FinalizerQueue(f"{worker.name}-references", self._drop)
        self._server = ValueServer(worker.agent, self._ledger)
        for cls in (ForkRequest, ForksDeleted):
            self._agent.handle(cls, self._ledger.arrived_at_owner)
        for answer in (ForkAccept, ChildAccept, ChildNoted, DeletionsNoted):
            self._agent.handle(answer, self._ledger.arrived_at_user)
        self._agent.on_peer_lost(lambda peer, _error: self._ledger.worker_lost(peer))
        self._agent.add_concern(self._ledger.partners)
        self._agent.on_close(self.close)
        self._agent.outgoing.before_call = self._finalizer_queue.relieve
        worker.pickling.register(RRef, self._reduce, self._rebuild)

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"<ReferenceService of {self.worker.name!r} · {now.owned} values, {now.forks} forks · "
            f"{now.used} used, {now.pending} pending>"
        )

    # ------------------------------------------------------------ making values

    def own(self, value: object) -> OwnedValue:
        """A new value of this worker; it is counted once it is shared."""
        owned = OwnedValue(self._next_id())
        owned.set(value)
        self._ledger.add_value(owned)
        return owned

    def create_remote(
        self,
        to: WorkerId,
        function: Callable[..., T],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        timeout: float = UNSET_TIMEOUT,
        copies: HostCopies | None = None,
    ) -> RRef[T]:
        """Has `to` run `function` and keep the value; see `rpc.remote`, and `to_several` for
        `copies`.

        Raises what keeps the arguments from being sent. A reference to a worker that is gone says
        so when it is used.
        """
        reference = self._next_id()
        if to == self.worker.id:
            value, fork = OwnedValue(reference), None
            self._ledger.add_value(value)
            rref = RRef._of_value(self, value)
            creation = Creation(partial(self._created_here, value))
        else:
            fork = self._ledger.fork(reference, self._next_id(), self._agent.info_of(to))
            rref = self._object_of(fork, Hold(fork.fork, counts=True))
            creation = Creation(partial(self._created, fork))
        rref._creation = creation
        try:
            self._ledger.creation_began(reference)
            if fork is None:
                make = _remote_call(reference, reference, DIRECT)
            else:
                make = _remote_call(reference, fork.fork, self._ledger.claim_new(fork))
            if copies is not None:
                make = to_several(copies, make)
            self._agent.outgoing.call_into(creation, to, (function, args, kwargs), timeout, make)
        except BaseException:
            try:
                _end_unsent(creation)
            except BaseException:  # an interrupt
                elsewhere(_end_unsent, (creation,))
                raise
            raise
        return rref

    def _created_here(self, value: OwnedValue, error: BaseException | None) -> None:
        self._ledger.creation_ended(value.reference)
        if isinstance(error, RpcTimeoutError):
            value.forbid(RRefError(TIMED_OUT))
        elif error is not None:
            value.fail(error)

    def _created(self, fork: UserFork, error: BaseException | None) -> None:
        self._ledger.creation_ended(fork.reference)
        if error is None:
            self._ledger.tell_user_soon(Settled(fork.fork))
            return
        if isinstance(error, RpcTimeoutError):
            fork.time_out()
            self._ledger.tell_user_soon(Abandoned(fork.fork))
            return
        if isinstance(error, PeerDiedError) and self._agent.is_lost(fork.owner.worker):
            fork.orphan(error)
        else:
            fork.fail(error)
        self._ledger.tell_user_soon(Failed(fork.fork))

    # ------------------------------------------------------------ fetching them

    def fetch(self, fork: UserFork, timeout: float) -> Any:
        """A copy of the value of a reference, from its owner; see `RRef.to_here`."""
        fork.check_usable("to_here() on it")
        owner = fork.owner.worker

        serial, stitch = self._ledger.serial(fork.fork), self._agent.values.stitch(owner)

        def build(number: int, travels: float | None) -> Fetch:
            return Fetch(number, fork.reference, fork.fork, serial, travels, stitch)

        try:
            value = self._agent.outgoing.ask(owner, build, timeout)
        except PeerDiedError as error:
            if not self._agent.is_lost(owner):
                raise  # the value itself is an exception that tells of another worker
            fork.orphan(error)
            raise fork.loss(error) from error
        except RRefError:
            fork.check_usable("to_here() on it")  # the call that makes the value failed meanwhile
            raise
        if not fork.is_confirmed():
            self._ledger.tell_user(Settled(fork.fork))
        return value

    # ------------------------------------------------------------ references on their way

    def _reduce(self, rref: RRef[Any], session: PickleSession) -> tuple[Any, ...]:
        known = rref._fork
        if known is not None and session.kept is not None and known.owner.worker == session.to:
            return self._lend(rref, known, session.kept)
        made = self._next_id()
        # Before there is anything to be taken back: an interrupt may come between.
        session.will_undo(partial(self._withdraw, rref, made))
        return self._send_off(rref, session.to, made)

    def _withdraw(self, rref: RRef[Any], made: GlobalId) -> None:
        """The fork `made` has not left, and perhaps is none yet."""
        value, fork = rref._value, rref._fork
        if value is not None:
            self._ledger.tell_owner(Withdrawn(value.reference, made))
        else:
            assert fork is not None
            self._ledger.tell_user(Withdrawn(fork.reference, made))

    def _lend(self, rref: RRef[Any], fork: UserFork, kept: list[object]) -> Loan:
        """A reference in a request to the owner itself: nothing need be counted, since ours is
        kept until the answer is there, and the owner then has the value or wants it no more."""
        fork.check_usable("fork an UserRRef")
        kept.append(rref)
        return self._ledger.serial(fork.fork), (*fork.reference,), (*fork.fork,)

    def _borrow(self, user: WorkerId, loan: Loan) -> RRef[Any]:
        serial, reference, fork = loan[0], GlobalId(*loan[1]), GlobalId(*loan[2])
        value = self._ledger.claim(Asked(user, reference, fork, serial))
        if value is None:  # the request is late, and nobody waits for it
            value = OwnedValue(reference)
            value.fail(RRefError(f"the reference was deleted before ({fork} of {reference})"))
        return RRef._of_value(self, value)

    def _rebuild(self, session: UnpickleSession, *state: Any) -> RRef[Any]:
        if len(state) == LOAN_LENGTH and session.sender is not None:
            return self._borrow(session.sender, cast("Loan", state))
        rref = self.receive(state)
        if rref._fork is not None:
            session.received.append(rref._fork)
        return rref

    def send_off(self, rref: RRef[Any], to: WorkerId | None) -> State:
        """Makes a fork of `rref` for another worker. Raises `RRefError` if `rref` is past use."""
        return self._send_off(rref, to, self._next_id())

    def _send_off(self, rref: RRef[Any], to: WorkerId | None, made: GlobalId) -> State:
        value, fork = rref._value, rref._fork
        if value is not None:
            value.check_usable()
            self._ledger.tell_owner(Shared(value.reference, made, to))
            owner, reference = self.worker.id, value.reference
        else:
            assert fork is not None
            fork.check_usable("fork an UserRRef")
            self._ledger.tell_user(Forked(fork.fork, made, to))
            owner, reference = fork.owner.worker, fork.reference
        return (*owner,), (*reference,), (*made,), (*self.worker.id,)

    def receive(self, state: State) -> RRef[Any]:
        """The reference that `send_off` made for this worker."""
        owner, parent = WorkerId(*state[0]), WorkerId(*state[3])
        reference, name = GlobalId(*state[1]), GlobalId(*state[2])
        if owner != self.worker.id:
            fork = self._ledger.fork(reference, name, self._agent.info_of(owner))
            hold = Hold(name, counts=False)
            rref = self._object_of(fork, hold)
            self._ledger.tell_user(Received(reference, name, owner, parent, hold))
            return rref
        rref = RRef._of_value(self, self._ledger.find_value(reference))
        if parent == owner:
            self._ledger.tell_owner(Withdrawn(reference, name))
        else:
            self._ledger.tell_user(CameHome(name, parent))
        return rref

    def _object_of(self, fork: UserFork, hold: Hold) -> RRef[Any]:
        self._finalizer_queue.start()
        return RRef._of_fork(self, fork, partial(self._finalizer_queue.let_go, hold))

    # ------------------------------------------------------------ letting go

    def drain(self) -> None:
        """Actions on the references dropped until now, instead of the thread that would do so."""
        self._finalizer_queue.drain()

    def _drop(self, holds: tuple[Hold, ...]) -> None:
        self._ledger.tell_user(Dropped(tuple([hold.fork for hold in holds if hold.counts])))

    def delete_all_users(self, timeout: float = 100.0) -> bool:
        """Gives up every reference to other workers' values, whatever still holds it, and waits
        until their owners know and others have given up the values of this worker. Afterwards such
        references raise on use.

        `timeout`: seconds, 0 for none. Returns False if it was over first.
        """
        deadline = self.worker.clock.now() + timeout if timeout else None
        settled = self._ledger.wait_until_settled(deadline)
        forks, held = self._ledger.held()
        for fork in forks:
            fork.delete()
        self._ledger.tell_user(Dropped(held))
        return self._ledger.wait_until_empty(deadline) and settled

    def close(self) -> None:
        """Ends the thread; what is dropped from now on nobody need be told."""
        self._ledger.close()
        self._finalizer_queue.close(self._agent.remaining_seconds(_PATIENCE_SECONDS))

    # ------------------------------------------------------------ looking inside

    def tick(self, now: float) -> None:
        """Sends again what is still unanswered; the agent's timer does it on its own."""
        self._ledger.tick(now)

    def leaks(self) -> list[str]:
        """A line for each fork that keeps a value of this worker alive."""
        return self._ledger.leaks()

    def check_leaks(self) -> None:
        """Raises `RRefError` if other workers still hold values of this one."""
        leaks = self.leaks()
        if leaks:
            raise RRefError("\n".join(leaks))

    def statistics(self) -> ReferenceStatistics:
        """A picture of the moment."""
        return self._ledger.statistics()

    def counters(self) -> list[Counter]:
        """What is counted here, for who looks on."""
        now = self.statistics()
        return [
            Counter("lockstitch_rrefs_owned", now.owned),
            Counter("lockstitch_rrefs_used", now.used),
            Counter("lockstitch_rrefs_pending", now.pending),
        ]

    def debug_info(self) -> dict[str, str]:
        """`statistics` under the incumbent's names."""
        now = self.statistics()
        return {
            "num_owner_rrefs": str(now.owned),
            "num_pending_users": str(now.pending),
            "num_pending_futures": str(now.creating),
            "num_forks": str(now.forks),
        }


def _end_unsent(creation: Creation) -> None:
    creation.complete(None, RRefError("rpc.remote raised, so its call has never left"))


def _remote_call(reference: GlobalId, fork: GlobalId, serial: int) -> MakeCall:
    """Turns the fields of a call into a `RemoteCall`."""
    return lambda request, function, definition, timeout, stitch, body: RemoteCall(
        request, function, definition, timeout, stitch, reference, fork, serial, body
    )
