"""Being let into a group that workers join and leave: whom to ask, and what to do with the answer.

    the store (`rendezvous.contacts`), or one address ─► ask a member ─► ask the eldest ─► in

Asking is a request like any other, made by an *applicant*: a worker without services, under an
identity of its own, that lives as long as the question. Who founds a group asks nobody.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lockstitch.errors import PeerDiedError, RpcTimeoutError
from lockstitch.ids import ANYBODY, MAX_GENERATION, WorkerId, WorkerInfo, applicant_id
from lockstitch.link.addresses import host_and_port
from lockstitch.rendezvous import Member, choose_address, host_identity
from lockstitch.rendezvous.member_records import MemberRecord
from lockstitch.rendezvous.membership_events import Admit, Redirect
from lockstitch.rendezvous.reaching import NOTICE_SECONDS, say
from lockstitch.runtime.worker import Worker
from lockstitch.wire.messages import AskAdmission

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lockstitch.clock import Clock
    from lockstitch.rendezvous.contacts import Contacts
    from lockstitch.rendezvous.membership_events import Refuse
    from lockstitch.runtime.agent import AgentOptions
    from lockstitch.transport.base import Connection, Transport

_PAUSE_SECONDS: Final = 0.05
_MOST_REDIRECTIONS: Final = 4
_SCHEME: Final = "lockstitch://"
INVITATION_VARIABLE: Final = "LOCKSTITCH_INVITATION"

Answer = tuple[str, Any]
"""What is replied: a word, and what goes with it.

    admitted    this worker's record, and those of all
    elsewhere   addresses and host of the member that decides
    refused     why
    over        the member that was asked is leaving itself
"""


def answer_of(decision: Admit | Redirect | Refuse, *, is_over: bool) -> Answer:
    """Returns a decision of `rendezvous.membership_protocol` as plain values."""
    if isinstance(decision, Admit):
        return "admitted", (
            decision.record.plain(),
            tuple(each.plain() for each in decision.records),
        )
    if isinstance(decision, Redirect):
        return "elsewhere", (decision.to.member.addresses, decision.to.member.host)
    return ("over" if is_over else "refused"), decision.reason


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a worker that wants to join says of itself. `rank` -1: any. `devices`: see `Member`."""

    name: str
    rank: int
    addresses: tuple[str, ...]
    host: str
    devices: str = ""

    def member(self, rank: int, generation: int) -> Member:
        """Returns the member that the worker is once it is in."""
        return Member(WorkerInfo(self.name, rank, generation), self.addresses, self.host)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A worker that is in: its own record, those of all, and which group it is."""

    me: MemberRecord
    records: tuple[MemberRecord, ...]
    group_id: str


Where: TypeAlias = "tuple[Sequence[str], str]"
"""The addresses of a worker, and its host."""
AskMember: TypeAlias = "Callable[[JoinRequest, str, Where, float], Answer]"
"""Asks the worker at a place to let one in, within so many seconds; the text is the applicant's
mark. Raises `PeerDiedError`."""


class Admission:
    """The attempts of one worker to be let into a group."""

    def __init__(
        self, join_request: JoinRequest, ask: AskMember, clock: Clock, timeout_seconds: float
    ) -> None:
        self._join_request = join_request
        self._ask = ask
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._deadline = clock.now() + timeout_seconds
        self._is_told = False
        self._mark = uuid.uuid4().hex
        self._gone: set[Member] = set()
        """Members that were named and do not live any more."""

    def by_address(self, address: str) -> Admitted:
        """Comes in through the member that listens at `address`. Raises `RuntimeError`: nobody
        does, the worker is refused, or the time is over."""
        host = host_identity()  # the caller says that it can be reached
        while True:
            found = self._follow((address,), host)
            if found is not None:
                return found
            self._pause(f"no member of a group answers at {address}")

    def by_store(self, contacts: Contacts) -> Admitted:
        """Comes in through any member named in a store; founds the group where none is alive.
        Raises `RuntimeError`: the worker is refused, the group is static, or the time is over."""
        while True:
            seen = contacts.read()
            entry = self._through(seen.members, seen.group_id)
            if entry is not None:
                if contacts.add(seen.group_id, self._mark, entry.me.member):
                    return entry
                self._mark = uuid.uuid4().hex  # that group is no more: begin anew
            elif self._gone.issuperset(seen.members.values()):
                founder = self._founder(contacts)
                if contacts.found(seen, founder.group_id, self._mark, founder.me.member):
                    return founder
            self._pause(f"the members in the store ({_names(seen.members)}) do not answer")

    def _through(self, members: Mapping[str, Member], group_id: str) -> Admitted | None:
        for member in members.values():
            entry = self._follow(member.addresses, member.host, member)
            if entry is not None:
                return Admitted(entry.me, entry.records, group_id)
        return None

    def _founder(self, contacts: Contacts) -> Admitted:
        generation = contacts.count_groups() & MAX_GENERATION
        member = self._join_request.member(max(self._join_request.rank, 0), generation)
        return Admitted(MemberRecord(member, 0, self._mark), (), uuid.uuid4().hex)

    def _follow(
        self, addresses: Sequence[str], host: str, known: Member | None = None
    ) -> Admitted | None:
        """Comes in through a member at these addresses, or the one that it names; returns None
        where that leads nowhere."""
        if known is not None:
            self._gone.discard(known)
        where: Where = (addresses, host)
        for hop in range(_MOST_REDIRECTIONS):
            remaining = max(self._deadline - self._clock.now(), 0.01)
            try:
                word, what = self._ask(self._join_request, self._mark, where, remaining)
            except PeerDiedError:
                if hop == 0 and known is not None:
                    self._gone.add(known)
                return None
            except RpcTimeoutError:
                return None
            if word == "admitted":
                me, records = what
                return Admitted(MemberRecord.of(me), tuple(map(MemberRecord.of, records)), "")
            if word == "refused":
                raise RuntimeError(what)
            if word == "over":
                if known is not None:
                    self._gone.add(known)
                return None
            where = what
        return None

    def _pause(self, why: str) -> None:
        if self._clock.now() >= self._deadline:
            raise RuntimeError(
                f"worker {self._join_request.name!r} did not get into the group within "
                f"{self._timeout_seconds:g} s: {why}"
            )
        waited = self._clock.now() - self._deadline + self._timeout_seconds
        if waited >= NOTICE_SECONDS and not self._is_told:
            self._is_told = True
            say(
                f"worker {self._join_request.name!r} waits to get into the group: {why}; "
                f"it gives up after {self._timeout_seconds:g} s"
            )
        self._clock.wait(threading.Event(), _PAUSE_SECONDS)


def _names(members: Mapping[str, Member]) -> str:
    return ", ".join(member.info.name for member in members.values()) or "none"


# ---------------------------------------------------------------- asking


def asking(transport: Transport, options: AgentOptions, clock: Clock) -> AskMember:
    """Returns what asks members over `transport`; the `options` are those of the worker to be."""

    def ask(join_request: JoinRequest, mark: str, where: Where, timeout: float) -> Answer:
        addresses, host = where
        address = choose_address(addresses, host == host_identity())
        me = WorkerInfo(join_request.name, *applicant_id(secrets.randbits(30)))
        directory = _OneAddress(address, transport)
        applicant = Worker(me, directory, transport, clock=clock, options=options)
        applicant.start()
        try:
            answer: Answer = applicant.agent.outgoing.request(
                ANYBODY,
                lambda request, travels: AskAdmission(
                    request,
                    travels,
                    None,
                    join_request.name,
                    join_request.rank,
                    mark,
                    join_request.addresses,
                    join_request.host,
                ),
                timeout,
            ).wait()
            return answer
        finally:
            applicant.close()

    return ask


class _OneAddress:
    """The directory of an applicant: it knows one address, and not whose it is."""

    is_fixed = True

    def __init__(self, address: str, transport: Transport) -> None:
        self._address = address
        self._transport = transport
        self._anybody = WorkerInfo("member", *ANYBODY)

    def find(self, key: str | int | WorkerId) -> WorkerInfo | None:
        return self._anybody if key == ANYBODY else None

    def members(self) -> Sequence[WorkerInfo]:
        return [self._anybody]

    def connect(self, peer: WorkerInfo, timeout_seconds: float) -> Connection:
        del peer
        return self._transport.connect(self._address, timeout_seconds)

    def elsewhere(self, worker: WorkerId) -> str:
        del worker
        return ""


# ---------------------------------------------------------------- invitations


@dataclass(frozen=True, slots=True)
class Invitation:
    """The address at which a member listens, as `init_method`: `lockstitch://host:port`, or
    `lockstitch:///path/of/a/socket` on the same host."""

    address: str

    @property
    def host(self) -> str | None:
        """The host that it names; None where it is a path of this one."""
        _, _, where = self.address.partition(":")
        return None if self.address.startswith("unix:") else host_and_port(where)[0]

    def __str__(self) -> str:
        scheme, _, rest = self.address.partition(":")
        return _SCHEME + (rest if scheme in ("unix", "tcp") else self.address)

    @classmethod
    def read(
        cls, init_method: str, environment: Mapping[str, str] | None = None
    ) -> Invitation | None:
        """Returns the invitation that a URL is, or that stands in LOCKSTITCH_INVITATION where the
        URL is `env://`; None where there is none. Raises `ValueError` where it names no address."""
        if environment is not None and init_method.startswith("env://"):
            init_method = environment.get(INVITATION_VARIABLE) or init_method
        if not init_method.startswith(_SCHEME):
            return None
        address = init_method.removeprefix(_SCHEME)
        if not address or (not address.startswith("/") and ":" not in address):
            raise ValueError(
                f"{init_method!r} names no member of a group: it is lockstitch://host:port or "
                "lockstitch:///path, as rpc.invitation() of a member says"
            )
        return cls(f"{'unix' if address.startswith('/') else 'tcp'}:{address}")
