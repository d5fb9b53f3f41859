"""Processes that join, leave, die and are cut off, and a network that delays, repeats, reorders and
loses: what a `MembershipProtocol` cannot see. The model knows who is really alive; the protocols of
all members have to find out.

Newcomers come by a store, in which they enter themselves, or by invitation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from torch.distributed import HashStore

from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rendezvous.contacts import Contacts
from lockstitch.rendezvous.member_records import MemberRecord
from lockstitch.rendezvous.membership_events import (
    Acknowledgement,
    Admit,
    Applied,
    Changed,
    Confirmed,
    Departed,
    Excluded,
    Leaving,
    Lost,
    Notice,
    Query,
    Redirect,
    Refuse,
    Ticked,
)
from lockstitch.rendezvous.membership_protocol import MembershipProtocol
from lockstitch.rendezvous.roster import Member


@dataclass(eq=False, repr=False)
class Process:
    """`protocol` is None until it is admitted. What it has `seen` of each life, in order."""

    mark: str
    name: str
    rank: int = -1
    protocol: MembershipProtocol | None = None
    is_alive: bool = True
    is_leaving: bool = False
    asks: Process | None = None
    refused: str = ""
    comes_by_store: bool = True
    is_cut_off: bool = False
    """It is dead, as all others see it, and goes on: it loses everybody, and reaches the store."""
    seen: dict[tuple[WorkerId, str], list[bool]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.mark} {self.name!r} {self.protocol!r}>"

    @property
    def is_in(self) -> bool:
        return self.is_alive and self.protocol is not None and not self.is_leaving

    @property
    def id(self) -> WorkerId | None:
        return None if self.protocol is None else self.protocol.me.id

    @property
    def address(self) -> str:
        return f"memory:{self.mark}"

    def roster(self) -> list[tuple[str, WorkerId]]:
        assert self.protocol is not None
        return [(record.name, record.id) for record in self.protocol.records.living()]


@dataclass(frozen=True, eq=False)
class Parcel:
    """An event on its way to a process (`to`), or to the life `wanted`, wherever that lives."""

    to: Process
    event: object
    wanted: WorkerId | None = None
    sender: Process | None = None


class Groups:
    """The processes and the network between them."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.parcels: list[Parcel] = []
        self.contacts = Contacts(HashStore())
        self._tickets: dict[int, Process] = {}
        founder = self._process("founder")
        me = self._member(founder, WorkerId(0, 0))
        assert self.contacts.found(self.contacts.read(), "world", founder.mark, me)
        self._come_in(
            founder, MemberRecord(self._member(founder, WorkerId(0, 0)), 0, founder.mark), ()
        )

    def _process(self, name: str, rank: int = -1) -> Process:
        process = Process(f"m{len(self.processes)}", name, rank)
        self.processes.append(process)
        return process

    def _member(self, process: Process, worker: WorkerId) -> Member:
        return Member(WorkerInfo(process.name, *worker), (process.address,), "host")

    # ------------------------------------------------------------ who there is

    def members(self) -> list[Process]:
        return [each for each in self.processes if each.is_in]

    def applicants(self) -> list[Process]:
        return [each for each in self.processes if each.is_alive and each.protocol is None]

    # ------------------------------------------------------------ what happens

    def named(self) -> list[Process]:
        """Those that a newcomer finds in the store."""
        marks = self.contacts.read().members
        return [each for each in self.processes if each.mark in marks]

    def join(self, name: str, rank: int, contact: Process, *, by_store: bool = True) -> Process:
        process = self._process(name, rank)
        process.comes_by_store = by_store
        self.apply(process, contact)
        return process

    def apply(self, process: Process, contact: Process) -> None:
        ticket = len(self._tickets)
        self._tickets[ticket] = process
        process.asks = contact
        wish = Applied(ticket, process.name, process.rank, process.mark, (process.address,), "host")
        self.parcels.append(Parcel(contact, wish, sender=process))

    def die(self, process: Process) -> None:
        process.is_alive = False

    def cut_off(self, process: Process) -> None:
        process.is_alive, process.is_cut_off = False, True

    def lose(self, process: Process, other: Process) -> None:
        """One that is cut off takes another for dead, and tells those it still believes in."""
        assert process.protocol is not None
        assert other.id is not None
        self._do(process, process.protocol.handle(Lost(other.id, "it was silent")))

    def leave(self, process: Process) -> None:
        process.is_leaving = True
        self._tell(process, Leaving())

    def tick(self, process: Process) -> None:
        self._tell(process, Ticked())

    def notice(self, process: Process, other: Process) -> None:
        """A connection between the two has ended, if there was one."""
        if other.id is not None and not other.is_alive:
            self._tell(process, Lost(other.id, "it died", other.is_leaving))

    def deliver(self, parcel: Parcel, *, again: bool = False) -> None:
        """It arrives; what is for a process that has not come in yet stays on its way."""
        to = parcel.to
        if to.is_alive and to.protocol is None and not isinstance(parcel.event, _ANSWERS):
            return
        if not again:
            self.parcels.remove(parcel)
        if not to.is_alive or (parcel.wanted is not None and to.id != parcel.wanted):
            sender = parcel.sender
            if sender is not None and sender.is_alive and sender.protocol is None:
                sender.asks = None  # it will find somebody else to ask
            elif sender is not None and sender.is_alive and parcel.wanted is not None:
                self._tell(sender, Lost(parcel.wanted, "it is gone", to.is_leaving))
            return
        if isinstance(parcel.event, _ANSWERS):
            self._answered(to, parcel.event)
        else:
            self._tell(to, parcel.event)

    def _answered(self, process: Process, answer: Admit | Redirect | Refuse) -> None:
        if process.protocol is not None:
            return
        if isinstance(answer, Admit):
            self._come_in(process, answer.record, answer.records)
        elif isinstance(answer, Refuse):
            if "has left" in answer.reason:
                process.asks = None  # it will find somebody else to ask
            else:
                process.refused, process.is_alive = answer.reason, False
        else:
            self.apply(process, self._at(answer.to))

    def _come_in(
        self, process: Process, record: MemberRecord, records: tuple[MemberRecord, ...]
    ) -> None:
        process.protocol = MembershipProtocol(record, records)
        for each in process.protocol.records.living():
            process.seen[each.id, each.mark] = [True]
        if process.comes_by_store:
            assert self.contacts.add("world", process.mark, record.member)
        self._do(process, process.protocol.begin())

    def _tell(self, process: Process, event: object) -> None:
        if process.protocol is not None and process.is_alive:
            self._do(process, process.protocol.handle(event))

    def _at(self, record: MemberRecord) -> Process:
        return next(each for each in self.processes if each.mark == record.mark)

    def _by_id(self, worker: WorkerId, seen_by: Process) -> Process:
        assert seen_by.protocol is not None
        record = seen_by.protocol.records.at(worker.rank)
        assert record is not None
        if record.id == worker:
            return self._at(record)
        return next(each for each in self.processes if each.id == worker)

    def _do(self, process: Process, instructions: list[object]) -> None:
        me = process.id
        assert me is not None
        for each in instructions:
            if isinstance(each, (Notice, Acknowledgement, Query)):
                self._send(process, each.peer, replace(each, peer=me))
            elif isinstance(each, (Admit, Redirect, Refuse)):
                if not process.is_cut_off:
                    self.parcels.append(Parcel(self._tickets[each.ticket], each, sender=process))
            elif isinstance(each, Changed):
                known = process.seen.setdefault((each.record.id, each.record.mark), [])
                known.append(each.record.is_in)
                assert known in ([True], [True, False]), (process, each, known)
            elif isinstance(each, Confirmed):
                self._publish(process, each)
            elif isinstance(each, Departed):
                process.is_alive = False
                assert process.protocol is not None
                if process.comes_by_store:
                    heirs = process.protocol.records.living()
                    self.contacts.remove("world", process.mark, heirs)
            elif isinstance(each, Excluded):
                raise AssertionError(f"{process} was taken for dead: {each.cause}")

    def _publish(self, process: Process, confirmed: Confirmed) -> None:
        if process.comes_by_store:
            self.contacts.update("world", confirmed.records)

    def _send(self, process: Process, to: WorkerId, event: object) -> None:
        if process.is_cut_off:
            return
        self.parcels.append(Parcel(self._by_id(to, process), event, to, process))

    # ------------------------------------------------------------ what must hold

    def check_that_nobody_shares_a_place(self) -> None:
        members = self.members()
        for key in (lambda each: each.name, lambda each: each.id.rank):
            counts = Counter(map(key, members))
            assert max(counts.values(), default=1) == 1, counts

    def check_that_the_store_names_one_that_lives(self) -> None:
        """As long as there is one that has ever spoken to it."""
        members = self.members()
        if any(each.comes_by_store for each in members):
            assert any(each in members for each in self.named()), self.contacts.read()

    def heal(self) -> None:
        """From now on nobody comes, goes or is lost; whoever asks in vain asks again."""
        for _ in range(60):
            for process in list(self.processes):
                if process.is_alive and process.protocol is not None:
                    self.tick(process)
            for applicant in self.applicants():
                members = self.members()
                if members and (applicant.asks is None or not applicant.asks.is_alive):
                    self.apply(applicant, members[-1])
            for _ in range(4):
                for parcel in list(self.parcels):
                    if parcel in self.parcels:
                        self.deliver(parcel)
            if not self.applicants() and self._is_agreed():
                return

    def _is_agreed(self) -> bool:
        expected = sorted((each.name, each.id) for each in self.members())
        return all(sorted(each.roster()) == expected for each in self.members()) and not any(
            each.is_leaving and each.is_alive for each in self.processes
        )

    def check_agreement(self) -> None:
        expected = sorted((each.name, each.id) for each in self.members())
        for process in self.members():
            assert sorted(process.roster()) == expected, process.mark
        assert not (self.members() and self.applicants())


_ANSWERS = (Admit, Redirect, Refuse)
