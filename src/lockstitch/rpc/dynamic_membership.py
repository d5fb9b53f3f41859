"""Membership of a group that workers join and leave at any time: carries out what
`rendezvous.membership_protocol` decides.

    messages, deaths, ticks ─► MembershipProtocol ─► notices to members, answers to newcomers
                                                └──► roster ─► calls fail, waits end, callbacks run

The protocol is asked under a lock, and what it wants done is done without: whatever concerns a
member in one queue for each, since connecting to a member may take a while and the others shall not
wait.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Final

from lockstitch.errors import LockstitchError, PeerDiedError, PeerLeftError, RpcError
from lockstitch.ids import is_applicant
from lockstitch.rendezvous.member_records import MemberRecord, MemberState
from lockstitch.rendezvous.membership_events import (
    Acknowledgement,
    Admit,
    Applied,
    Changed,
    Confirmed,
    DeclaredDead,
    Departed,
    Excluded,
    Leaving,
    Lost,
    Notice,
    Query,
    Redirect,
    Refuse,
    Ticked,
    Withdrew,
)
from lockstitch.rpc.admission import answer_of
from lockstitch.rpc.announcer import MembershipEvent
from lockstitch.rpc.dynamic_directory import gone
from lockstitch.rpc.membership import Membership, try_store
from lockstitch.wire.messages import (
    AskAdmission,
    MembershipAcknowledgement,
    MembershipNotice,
    MembershipQuery,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.ids import WorkerId
    from lockstitch.rendezvous.contacts import Contacts
    from lockstitch.rendezvous.membership_events import Event, Instruction
    from lockstitch.rendezvous.membership_protocol import MembershipProtocol
    from lockstitch.rpc.dynamic_directory import DynamicDirectory
    from lockstitch.runtime.invocation import Invocation
    from lockstitch.runtime.worker import Worker
    from lockstitch.wire.messages import Message

_BUSY_SECONDS: Final = 0.5
_QUIET_SECONDS: Final = 3.0
_ASKING_SECONDS: Final = 2.0
_MOST_QUESTIONS: Final = 100
"""How often a member that passes for dead is asked whether it is alive, where others are left."""


class DynamicMembership(Membership):
    """How one worker belongs to the group `group_id`. `contacts` is the store in which newcomers
    look; None where the worker has come by invitation."""

    is_static = False

    def __init__(
        self,
        worker: Worker,
        protocol: MembershipProtocol,
        directory: DynamicDirectory,
        contacts: Contacts | None = None,
        group_id: str = "",
    ) -> None:
        super().__init__(worker)
        self.addresses = protocol.me.member.addresses
        self._protocol = protocol
        self._directory = directory
        self._contacts = contacts
        self._group_id = group_id
        self._deciding = threading.Lock()
        self._queues: dict[WorkerId, deque[Message | Callable[[], None]]] = {}
        self._sending: set[WorkerId] = set()
        self._tickets = itertools.count(1)
        self._applicants: dict[int, Invocation] = {}
        self._departed = threading.Event()
        self._closed = self._ticks_again = False
        self._confirmed: tuple[MemberRecord, ...] = ()
        self._living = protocol.records.living()
        self._asking_the_dead = threading.Lock()
        self._asked: Counter[WorkerId] = Counter()
        agent = worker.agent
        agent.handle(MembershipNotice, self._take_notice)
        agent.handle(
            MembershipAcknowledgement,
            lambda sender, it: self._handle(Acknowledgement(sender, it.number)),
        )
        agent.handle(MembershipQuery, lambda sender, it: self._handle(Query(sender, it.digest)))
        agent.serve(AskAdmission, self._take_application)
        agent.on_peer_lost(self._note_lost)
        agent.add_concern(self._watched)

    def __repr__(self) -> str:
        return f"<DynamicMembership · {self._protocol!r}>"

    def begin(self) -> None:
        """Begins the protocol: the worker serves from now on."""
        with self._deciding:
            instructions = self._protocol.begin()
        self._carry_out(instructions)
        self._tick()

    def leave(self, timeout_seconds: float) -> None:
        """Tells the others that this worker leaves; returns when one that passes it on has
        acknowledged it, or when the time is over."""
        self._handle(Leaving())
        with self.worker.agent.blocked():
            self.worker.clock.wait(self._departed, timeout_seconds or None)

    def close(self) -> None:
        self._closed = True
        contacts, mark = self._contacts, self._protocol.me.mark
        if contacts is not None:
            heirs = self._protocol.records.living() if self._protocol.is_leaving else []
            try_store(self.worker, partial(contacts.remove, self._group_id, mark, heirs))
        super().close()

    def add_callback(self, callback: Callable[[MembershipEvent], object]) -> Callable[[], None]:
        with self._deciding:  # so that no change comes in between
            return self._add_callback(callback, self.present())

    # ------------------------------------------------------------ what happens

    def _handle(self, event: Event) -> None:
        with self._deciding:
            instructions = self._protocol.handle(event)
            for each in instructions:
                if isinstance(each, Changed):
                    self._note_change(each.record)
                elif isinstance(each, Confirmed):
                    self._confirmed = each.records
            ticks_again = not (self._ticks_again or self._protocol.is_settled)
            self._ticks_again = self._ticks_again or ticks_again
        if ticks_again:
            self.worker.agent.call_later(_BUSY_SECONDS, self._tick_again)
        self._carry_out(instructions)

    def _take_notice(self, sender: WorkerId, message: MembershipNotice) -> None:
        records = tuple(map(MemberRecord.of, message.records))
        self._handle(Notice(sender, message.number, records, message.whole))

    def _note_lost(self, peer: WorkerId, error: PeerDiedError) -> None:
        if is_applicant(peer):
            with self._deciding:
                asking = [n for n, each in self._applicants.items() if each.caller == peer]
            for ticket in asking:
                self._applicants.pop(ticket, None)
                self._handle(Withdrew(ticket))
        else:
            self._handle(Lost(peer, error.cause, isinstance(error, PeerLeftError)))

    def _take_application(self, invocation: Invocation) -> None:
        message = invocation.message
        assert isinstance(message, AskAdmission)
        ticket = next(self._tickets)
        self._applicants[ticket] = invocation
        invocation.park()
        place = (message.addresses, message.host)
        self._handle(Applied(ticket, message.name, message.rank, message.mark, *place))

    def _tick(self) -> None:
        """Lets the protocol compare tables; repeated for as long as the worker lives."""
        if not self._closed:
            self._handle(Ticked())
            self.worker.agent.call_later(_QUIET_SECONDS, self._tick)
            if self._dead_to_ask() and self._asking_the_dead.acquire(blocking=False):
                self.worker.agent.spawn(self._ask_the_dead)

    def _dead_to_ask(self) -> list[MemberRecord]:
        with self._deciding:
            dead, is_alone = self._protocol.cut_off_from(), len(self._living) == 1
        return [record for record in dead if is_alone or self._asked[record.id] < _MOST_QUESTIONS]

    def _ask_the_dead(self) -> None:
        """Finds out, on the eldest, whether those that pass for dead are alive and only cut off, or
        whether this worker is, if it is alone: the living say so. Of two that have both given the
        other up the elder stays; of two groups, people have to say which."""
        try:
            words = {
                record: word for record in self._dead_to_ask() if (word := self._refusal(record))
            }
            if len(self._living) == 1:
                mine = self._protocol.me.age
                votes = sum(1 if record.age > mine else 2 for record in words)
                if votes > 1:
                    self._handle(DeclaredDead(next(iter(words.values()))))
            elif len(words) > 1:
                self._asked.update(dict.fromkeys((record.id for record in words), _MOST_QUESTIONS))
                self._report_parting(sorted(record.name for record in words))
        finally:
            self._asking_the_dead.release()

    def _refusal(self, record: MemberRecord) -> str:
        """Asks a member that passes for dead. Returns its words if it says that it holds this
        worker for dead; else nothing."""
        self._asked[record.id] += 1
        try:
            connection = self._directory.reach(record.member, _ASKING_SECONDS)
        except (OSError, RpcError) as error:
            if isinstance(error.__cause__ or error, (FileNotFoundError, ConnectionRefusedError)):
                self._asked[record.id] += _MOST_QUESTIONS  # its process has ended
            return ""
        return self.worker.agent.peers.refusal(record.member.info, connection)

    def _report_parting(self, names: list[str]) -> None:
        agent = self.worker.agent
        agent.report(
            RpcError(
                f"workers {', '.join(names)} were cut off and pass for dead here, yet live and "
                f"hold worker {agent.info.name} for dead: the group goes on as two, unless they "
                "have noticed. Shut down those of one of the two, and let them join the other anew"
            )
        )

    def _tick_again(self) -> None:
        """Ticks once more, soon, while something is unanswered."""
        self._ticks_again = False
        if not (self._closed or self._protocol.is_settled):
            self._handle(Ticked())

    def _watched(self) -> set[WorkerId]:
        """Returns those whose death this worker is to notice: on the eldest, all others; elsewhere
        the eldest and the next younger one."""
        living = [record.id for record in self._living]
        if self.worker.id not in living:
            return set()
        if living[0] == self.worker.id:
            return set(living[1:])
        following = living[(living.index(self.worker.id) + 1) % len(living)]
        return {living[0], following}

    # ------------------------------------------------------------ what must be done

    def _note_change(self, record: MemberRecord) -> None:
        """Tells of a change. To be called under the lock, so that changes are told in their
        order."""
        self._living = self._protocol.records.living()
        if record.id == self.worker.id:
            return
        info = record.member.info
        self._directory.update(self._living, None if record.is_in else record)
        if self._protocol.is_leaving:
            return  # the others part from one that has left: that is no news of theirs
        if record.is_in:
            self._tell(MembershipEvent("joined", info))
        else:
            has_left = record.state is MemberState.LEFT
            self._tell(MembershipEvent("left" if has_left else "died", info, record.cause))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        agent = self.worker.agent
        for each in instructions:
            if isinstance(each, Notice):
                records = tuple(record.plain() for record in each.records)
                self._queue(each.peer, MembershipNotice(each.number, each.is_whole, records))
            elif isinstance(each, Acknowledgement):
                self._queue(each.peer, MembershipAcknowledgement(each.number))
            elif isinstance(each, Query):
                self._queue(each.peer, MembershipQuery(each.digest))
            elif isinstance(each, (Admit, Redirect, Refuse)):
                agent.spawn(partial(self._answer, each))
            elif isinstance(each, Changed) and each.record.state is MemberState.LEFT:
                # It waits for the acknowledgement of that, which is in its queue.
                self._queue(each.record.id, partial(self._lose, each.record))
            elif isinstance(each, Changed) and not each.record.is_in:
                agent.spawn(partial(self._lose, each.record))
            elif isinstance(each, Excluded):
                agent.spawn(partial(self._lose_all, each.cause))
            elif isinstance(each, Confirmed):
                agent.spawn(self._publish)
            elif isinstance(each, Departed):
                self._departed.set()

    def _answer(self, decision: Admit | Redirect | Refuse) -> None:
        invocation = self._applicants.pop(decision.ticket, None)
        if invocation is not None:
            is_over = all(record.id != self.worker.id for record in self._living)
            invocation.reply(answer_of(decision, is_over=is_over))

    def _lose(self, record: MemberRecord) -> None:
        """Ends whatever waits for a member that is gone."""
        if record.id != self.worker.id:
            self.worker.agent.peers.lose(record.member.info, gone(record))

    def _lose_all(self, cause: str) -> None:
        """Gives all others up: they hold this worker for dead, so it holds nobody for alive."""
        agent = self.worker.agent
        for info in self._directory.members():
            if info.worker != self.worker.id:
                cut = "it holds this worker for dead"
                agent.peers.lose(info, PeerDiedError(info.name, cut))
        agent.report(
            RpcError(
                f"the others have struck worker {agent.info.name!r} out of the group "
                f"({cause or 'its place was taken'}): shut it down, and let it join anew"
            )
        )

    def _publish(self) -> None:
        """Writes into the store who is in the group."""
        contacts = self._contacts
        if contacts is not None and not self._closed:
            try:
                contacts.update(self._group_id, self._confirmed)
            except RuntimeError:  # the store has gone with its host: newcomers ask members
                self._contacts = None

    # ------------------------------------------------------------ queues

    def _queue(self, to: WorkerId, message: Message | Callable[[], None]) -> None:
        with self._deciding:
            self._queues.setdefault(to, deque()).append(message)
            if to in self._sending:
                return
            self._sending.add(to)
        self.worker.agent.spawn(partial(self._send_queued, to))

    def _send_queued(self, to: WorkerId) -> None:
        """Sends what is queued for `to`, in order, until the queue is empty."""
        while True:
            with self._deciding:
                queue = self._queues[to]
                if not queue or self._closed:
                    del self._queues[to]
                    self._sending.discard(to)
                    return
                message = queue.popleft()
            if callable(message):
                message()
                continue
            with contextlib.suppress(LockstitchError):  # it is lost, and that is an event too
                self.worker.agent.send(to, message)
