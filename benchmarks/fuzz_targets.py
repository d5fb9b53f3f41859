"""What is fuzzed: everything that reads bytes of others, each with true bytes to begin from.

A target takes any bytes and reads them as a worker does. Being refused, by one of few errors, is
right; any other error is a finding, and so is anything asserted here.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch.distributed import HashStore

from benchmarks.fuzz import LIMITS, Point, Reader, corpus, greetings_in, mutated
from lockstitch.collectives.c10d import messages as orders
from lockstitch.collectives.c10d.coordinator import Coordinator
from lockstitch.collectives.requests import Description, Kind, ReduceOp, Reduction
from lockstitch.errors import ProtocolError, SerializationError
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.launcher_link.messages import CODEC, MOST_BYTES, Over, Ready, Update
from lockstitch.launcher_link.rank_coordinator import (
    CameReady,
    CoordinatorOptions,
    HostsFound,
    RankCoordinator,
)
from lockstitch.link.greetings import GreetingReader
from lockstitch.link.handshake import CallerHandshake, ListenerHandshake, SessionKeys
from lockstitch.link.line import Line
from lockstitch.rendezvous.contacts import Contacts
from lockstitch.rendezvous.member_records import MemberRecord
from lockstitch.rendezvous.membership_events import (
    Acknowledgement,
    Applied,
    Notice,
    Query,
    Ticked,
    Withdrew,
)
from lockstitch.rendezvous.membership_protocol import MembershipProtocol
from lockstitch.rendezvous.roster import Member
from lockstitch.rendezvous.sealed_store import SealedStore
from lockstitch.trust import Secret
from lockstitch.wire.authentication import AuthenticatedFrameDecoder, FrameAuthenticator
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.messages import (
    AskAdmission,
    MembershipAcknowledgement,
    MembershipNotice,
    MembershipQuery,
    Payload,
)
from lockstitch.wire.pickling import pack

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from lockstitch.rendezvous.membership_events import Event

_REFUSALS: Final = (ProtocolError, SerializationError)
_SECRET: Final = Secret(bytes(range(32)))
_KEY: Final = bytes(range(32))
_ME, _OTHER = WorkerInfo("me", 0), WorkerInfo("other", 1)


@dataclass(frozen=True, slots=True)
class Target:
    """`read` takes any bytes; `seeds` are true ones; `change` knows their joints, and changes them
    there by chance."""

    read: Callable[[bytes], None]
    seeds: Sequence[bytes]
    change: Callable[[bytes, random.Random], bytes] | None = None


# ---------------------------------------------------------------- frames, seals, pickles

_reader = Reader()


def _frames(data: bytes) -> None:
    _reader.frame(data)


def _pickles(data: bytes) -> None:
    if data:
        _reader.value(Payload(data[0], data[1:], ()))


def _pickle_seeds() -> list[bytes]:
    values: list[Any] = [None, (1, "two", [3.0, {"four": b"5"}]), Point(2.0), {1, 2}, "x" * 300]
    packed = [pack(value, _reader.registry)[0] for value in values]
    return [bytes([body.encoding]) + bytes(body.stream) for body in packed]


_SEALED: Final = b"".join(map(bytes, FrameAuthenticator(_KEY)(0, [corpus()[0]])))


def _sealed(data: bytes) -> None:
    """What somebody on the way makes of a sealed stream: nothing of it may be read."""
    decoder = AuthenticatedFrameDecoder(_KEY, LIMITS)
    with contextlib.suppress(*_REFUSALS):
        decoder.feed(data)
    if decoder.messages and not data.startswith(_SEALED):
        raise AssertionError("a changed frame was read")


# ---------------------------------------------------------------- greetings


def _greetings(data: bytes) -> None:
    """The first byte says what is replaced by the rest: the first or the second greeting of the
    caller or of the listener; and whether the caller has the secret."""
    if not data:
        return
    which, at_caller, is_stranger = data[0] & 1, bool(data[0] & 2), bool(data[0] & 4)
    listener = ListenerHandshake(_ME, _SECRET, lambda _hello: "")
    secret = Secret(bytes(32)) if is_stranger else _SECRET
    caller = CallerHandshake(_OTHER, _ME.worker, ("3", "2"), secret)
    reader, is_true = GreetingReader(), True
    with contextlib.suppress(*_REFUSALS):
        said = caller.opening
        for step in range(2):
            if step == which and not at_caller:
                is_true, said = data[1:].startswith(said), data[1:]
            answer = b"".join(map(listener.take, greetings_in(reader, said)))
            if step == which and at_caller:
                is_true, answer = data[1:].startswith(answer) and bool(answer), data[1:]
            said = b"".join(map(caller.take, greetings_in(GreetingReader(), answer)))
    if listener.caller is not None and (is_stranger or not (is_true or at_caller)):
        raise AssertionError("a stranger came in")
    if caller.is_proved and (is_stranger or not is_true):
        raise AssertionError("a stranger was taken for the worker that was called")


def _greeting_seeds() -> list[bytes]:
    hello = CallerHandshake(_OTHER, _ME.worker, ("3", "2"), _SECRET).opening
    listener = ListenerHandshake(_ME, _SECRET, lambda _hello: "")
    challenge = listener.take(hello)
    return [bytes([first]) + said for first in range(8) for said in (hello, challenge)]


# ---------------------------------------------------------------- the store, membership


def _store_entries(data: bytes) -> None:
    """As an entry of a store that others write into, with a secret and without."""
    with contextlib.suppress(*_REFUSALS):
        member = Member.decode(data)
        assert Member.decode(member.encode().encode()) == member
    store = HashStore()
    text = data.decode("latin-1")
    store.set("group", text)
    with contextlib.suppress(*_REFUSALS):
        group = Contacts(store).read()
        assert all(type(each.info.name) is str for each in group.members.values())
    with contextlib.suppress(*_REFUSALS):
        if SealedStore(store, _SECRET).get("group"):
            raise AssertionError("an entry without a seal was read")


def _member_record(rank: int, name: str) -> MemberRecord:
    return MemberRecord(Member(WorkerInfo(name, rank, 0), (f"unix:/{rank}",), "host"), rank, name)


_MEMBERS: Final = [_member_record(rank, name) for rank, name in enumerate(("a", "b", "c"))]


def _membership(data: bytes) -> None:
    """As frames that members and newcomers send; the roster must stay fit for use."""
    decoder = FrameDecoder(LIMITS, is_strict=True)
    with contextlib.suppress(*_REFUSALS):
        decoder.feed(data)
    protocol = MembershipProtocol(_MEMBERS[1], _MEMBERS)
    for number, message in enumerate(decoder.messages):
        sender = _MEMBERS[2 * (number % 2)].id
        with contextlib.suppress(*_REFUSALS):
            for event in _events(sender, number, message):
                protocol.handle(event)
    protocol.handle(Ticked())
    for ticket in range(len(decoder.messages)):
        protocol.handle(Withdrew(ticket))
    assert protocol.records.digest()
    repr(protocol)


def _events(sender: WorkerId, number: int, message: Any) -> list[Event]:
    if isinstance(message, MembershipNotice):
        records = tuple(map(MemberRecord.of, message.records))
        return [Notice(sender, message.number, records, message.whole)]
    if isinstance(message, MembershipAcknowledgement):
        return [Acknowledgement(sender, message.number)]
    if isinstance(message, MembershipQuery):
        return [Query(sender, message.digest)]
    if isinstance(message, AskAdmission):
        wish = (message.name, message.rank, message.mark, message.addresses, message.host)
        return [Applied(number, *wish)]
    return []


def _membership_seeds() -> list[bytes]:
    ended = (*_MEMBERS[0].plain()[:-2], 1, "it died")
    said = [
        MembershipNotice(1, True, tuple(each.plain() for each in _MEMBERS)),
        MembershipNotice(2, False, (ended,)),
        MembershipNotice(3, False, (_member_record(7, "new").plain(),)),
        MembershipAcknowledgement(1),
        MembershipQuery("digest"),
        AskAdmission(1, None, None, "d", -1, "mark", ("tcp:1.2.3.4:5",), "host"),
        AskAdmission(2, 3.0, None, "e", 1, "other mark", (), "host"),
    ]
    frames = [b"".join(map(bytes, encode(each))) for each in said]
    return [*frames, b"".join(frames)]


# ---------------------------------------------------------------- the launcher's link


def _board(data: bytes) -> None:
    """As what comes to the launcher: from a stranger, in the middle of a line, and from workers as
    lines of text."""
    keys = SessionKeys(_KEY, _KEY)
    line = Line(Said(data), keys, MOST_BYTES)
    with contextlib.suppress(*_REFUSALS, ConnectionError):
        if list(line.read()) and not data.startswith(_RECORD):
            raise AssertionError("a stranger was heard")
    coordinator = RankCoordinator(CoordinatorOptions(wanted=2), 0.0)
    coordinator.handle(HostsFound((("localhost", 2),)), 0.0)
    for text in data.split(b"\n")[:20]:
        try:
            message = CODEC.decode(text)
        except _REFUSALS:
            continue
        if isinstance(message, Ready):
            coordinator.handle(CameReady(message.port), 1.0)


class Said:
    """A stream from which these bytes come."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def send(self, buffers: Sequence[bytes]) -> None:
        self.data += b"".join(buffers)

    def receive_into(
        self, view: memoryview, counts: list[int], _timeout_seconds: float | None
    ) -> None:
        piece = self.data[: len(view)]
        view[: len(piece)] = piece
        counts.append(len(piece))

    def signs_of_life(self) -> tuple[int, ...]:
        return ()

    def bound_silence(self, seconds: float) -> None: ...

    def end_sending(self) -> None: ...

    def close(self) -> None: ...


def _record() -> bytes:
    """One, sealed."""
    said = Said()
    Line(said, SessionKeys(_KEY, _KEY), MOST_BYTES).send(CODEC.encode(Ready(1)))
    return said.data


_RECORD: Final = _record()


def _board_seeds() -> list[bytes]:
    messages = Update(3, 1), Ready(80), Over("x")
    texts = [CODEC.encode(message) for message in messages]
    return [*texts, b"\n".join(texts), _RECORD]


# ---------------------------------------------------------------- the reductions' hub


_SIZE: Final = 4
"""The bytes of a record's length, in the stream that is made of records here."""


def _record_of(message: orders.Message) -> bytes:
    body = orders.encode(message)
    return len(body).to_bytes(_SIZE, "little") + body


def _hub(data: bytes) -> None:
    """As the messages of ranks, in turns: each is taken in or refused, and the rest goes on."""
    hub, rest, rank = Coordinator(3, 1 << 20), memoryview(data), 0
    while len(rest) >= _SIZE:
        size = int.from_bytes(rest[:_SIZE], "little")
        body, rest = bytes(rest[_SIZE:][:size]), rest[_SIZE + size :]
        if not body or len(body) < size:  # no such record passes a line
            break
        try:
            message = orders.decode(body)
        except _REFUSALS:
            break
        hub.hear([(rank % 3, message)])
        rank += 1
    hub.hear([(rank, orders.Leave()) for rank in range(3)])


def _hub_seeds() -> list[bytes]:
    reduction = Reduction(ReduceOp.SUM, 1.0, 1.0)
    summed = Description(Kind.ALLREDUCE, "w", ("float32",), ((4, 5),), reduction)
    gathered = Description(Kind.ALLGATHER, "g", ("int64",), ((4,),))
    defines = [
        orders.Define(number, 0, (0, 1, 2), each.encode().decode())
        for number, each in enumerate((summed, gathered))
    ]
    said: list[list[Any]] = [[define, orders.Submit(define.number)] for define in defines]
    streams = [b"".join(_record_of(message) for message in each for _ in range(3)) for each in said]
    rest: list[Any] = [
        orders.Join(),
        orders.Ask(0),
        orders.Leave(),
        orders.Ask(orders.ANYTHING),
    ]
    return [*streams, b"".join(streams), *(streams[0] + _record_of(each) for each in rest)]


# ---------------------------------------------------------------- all


def targets() -> dict[str, Target]:
    """All of them, by name."""
    return {
        "frames": Target(_frames, corpus(), mutated),
        "seals": Target(_sealed, [_SEALED]),
        "pickles": Target(_pickles, _pickle_seeds()),
        "greetings": Target(_greetings, _greeting_seeds()),
        "store": Target(
            _store_entries, [_MEMBERS[0].member.encode().encode(), _group_seed()], other_words
        ),
        "membership": Target(_membership, _membership_seeds(), mutated),
        "board": Target(_board, _board_seeds(), other_words),
        "hub": Target(_hub, _hub_seeds(), other_words),
    }


def _group_seed() -> bytes:
    entries = [[each.mark, each.member.encode()] for each in _MEMBERS]
    return json.dumps({"world": "w", "members": entries}).encode()


_WORDS: Final = re.compile(rb'"[^"]*"|[-+.\w]+|.', re.DOTALL)
_OTHER_WORDS: Final = (
    *(b"null", b"true", b"-1", b"0", b"1.5", b"1e999", b"NaN", b"9" * 30, b'""', b'"x"', b"[]"),
    *(b"{}", b'"\\ud800"', b"[" * 3000, b",", b'{"a":', b'"sum"', b'"float32"', b"[[1,2],[3]]"),
)


def other_words(data: bytes, chance: random.Random) -> bytes:
    """JSON with some of its words changed, left out or repeated."""
    words = _WORDS.findall(data)
    for _ in range(chance.randrange(1, 4) if words else 0):
        at = chance.randrange(len(words))
        words[at : at + chance.randrange(2)] = chance.choice(
            ([chance.choice(_OTHER_WORDS)], [], [words[at]] * 2, [chance.choice(words)])
        )
        if not words:
            break
    changed = b"".join(words)
    if len(data) > _SIZE and data[0] == (len(data) - _SIZE) & 0xFF:
        changed = changed[_SIZE:]
        changed = len(changed).to_bytes(_SIZE, "little") + changed
    return changed
