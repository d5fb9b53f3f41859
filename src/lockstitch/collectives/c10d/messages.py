"""What the ranks tell rank 0, and what it answers, as bytes.

A rank describes a name once, under a number of its own; after that a submission takes 5 bytes, and
an order 4 for each operation. Small tensors ride on the submission, and what they come to on the
answer (`riding`). What happens seldom travels as JSON, and what differs between ranks once for each
kind that there is, for all ranks are told of all.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstitch.errors import ProtocolError
from lockstitch.link.codec import Codec
from lockstitch.link.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER = struct.Struct("<BI")
_DETAILS = struct.Struct("<Biq")
_ROUTE = struct.Struct("<Bi")
_AHEAD = struct.Struct("<BII")
_SUBMIT, _ORDER, _RARE, _DONE, _DETAILED, _VIA, _SUBMIT_AHEAD, _ALONE = 1, 2, 3, 4, 5, 6, 7, 8
MOST_BYTES = 1 << 26

ANYTHING = -1
"""The number of no operation."""
UNREACHED = "died, or its connection broke"
"""What is said of a rank of which only that is known that its connection has ended."""


@dataclass(frozen=True, slots=True)
class Define:
    """A rank tells what a number of its own stands for, in a process set. `ranks` are those of the
    set, the first time that this rank names it; empty afterwards, and for the set of all ranks."""

    number: int
    set_id: int
    ranks: tuple[int, ...]
    content: str


@dataclass(frozen=True, slots=True)
class Submit:
    """A rank has submitted the operation with this number; the bytes of its tensors, where these
    ride along, or the number of what goes ahead of it to the other ranks (`ahead`)."""

    number: int
    content: bytes = b""
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Join:
    """A rank is out of data. Who is so last is told by the order in which this is heard: the clocks
    of hosts differ."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Somebody shuts down: who says it, or `rank`, from which orders came: none come any more."""

    rank: int = -1


@dataclass(frozen=True, slots=True)
class Ask:
    """A rank asks for whom it waits in this operation. With `ANYTHING` it asks whether somebody
    waits for it."""

    number: int


@dataclass(frozen=True, slots=True)
class Order:
    """Perform these now, as one; numbers are the addressee's own. What all have sent ahead of a
    single one has the numbers `sent`, by position; there are none where not all have. The next time
    parts shall go ahead of it if `is_likely`."""

    numbers: tuple[int, ...]
    sent: tuple[int, ...] = ()
    is_likely: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The operation has been performed; `content` has the bytes of its results."""

    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Detailed:
    """Perform this now. The descriptions by position, as `pack_described` writes them, `None` for
    who has joined; `number` is -1 for an addressee that has."""

    number: int
    set_id: int
    described: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """Tells a rank that the operation cannot be performed."""

    number: int
    objection: str
    text: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Tells a rank that all have joined."""

    last: int


@dataclass(frozen=True, slots=True)
class Fail:
    """A rank cannot go on, and says why."""

    why: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """Tells a rank that all have come."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A rank is gone: the session is over. `why` goes on from its name."""

    rank: int
    why: str = UNREACHED


@dataclass(frozen=True, slots=True)
class Missing:
    """The answer to `Ask`: ranks that have not submitted it; the asker itself if it is wanted."""

    number: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DefineRow:
    """A speaker tells what a number of its own stands for, where the ranks for which it speaks have
    submitted under one name what differs: the descriptions by rank, None for who has joined."""

    number: int
    set_id: int
    ranks: tuple[int, ...]
    name: str
    row: Runs


@dataclass(frozen=True, slots=True)
class JoinAll:
    """All ranks for which a speaker speaks are out of data; `last` became so last."""

    last: int


@dataclass(frozen=True, slots=True)
class AskNamed:
    """A rank asks for whom it waits in the operation with this number of its own, which has that
    name in that process set."""

    number: int
    set_id: int
    name: str


@dataclass(frozen=True, slots=True)
class Lacking:
    """A speaker tells which of its ranks have not submitted what others of them have."""

    set_id: int
    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loosen:
    """Tells speakers to speak for nobody any more, but to pass on what each rank says; first what
    is not decided yet."""


@dataclass(frozen=True, slots=True)
class Via:
    """What another rank than the one at the end of the line says, or is told: one below it in the
    tree."""

    rank: int
    message: Plain


Plain = (
    Define
    | Submit
    | Join
    | Leave
    | Fail
    | Welcome
    | Ask
    | Order
    | Done
    | Detailed
    | Refused
    | Joined
    | Lost
    | Missing
    | DefineRow
    | JoinAll
    | AskNamed
    | Lacking
    | Loosen
)
Message = Plain | Via
_CODEC: Final[Codec[Plain]] = Codec(
    *(Define, Join, Leave, Fail, Welcome, Ask, Refused, Joined, Lost, Missing),
    *(DefineRow, JoinAll, AskNamed, Lacking, Loosen),
    complaint="a message that cannot be read",
    error=ProtocolError,
)
"""For what happens seldom."""


_DESCRIBED: Final = Codec(Runs, complaint="descriptions that cannot be read", error=ProtocolError)


def pack_described(described: Sequence[str | None]) -> bytes:
    """Writes the descriptions of all positions, which are often the same."""
    return _DESCRIBED.encode(Runs.of(described))


def unpack_described(content: bytes) -> tuple[str | None, ...]:
    """Returns what `pack_described` has written. Raises `ProtocolError` for anything else."""
    try:
        return _DESCRIBED.decode(content).row()
    except ValueError as error:
        raise ProtocolError(f"descriptions that cannot be read: {error}") from error


def encode(message: Message) -> bytes:
    """A message as a record."""
    if isinstance(message, Submit):
        number, ahead = message.number, message.ahead
        head = _AHEAD.pack(_SUBMIT_AHEAD, number, ahead) if ahead else _NUMBER.pack(_SUBMIT, number)
        return head + message.content
    if isinstance(message, Done):
        return _NUMBER.pack(_DONE, message.number) + message.content
    if isinstance(message, Detailed):
        return _DETAILS.pack(_DETAILED, message.number, message.set_id) + message.described
    if isinstance(message, Order):
        return _order(message)
    if isinstance(message, Via):
        return _ROUTE.pack(_VIA, message.rank) + encode(message.message)
    return bytes([_RARE]) + _CODEC.encode(message)


def _order(message: Order) -> bytes:
    kind, numbers = _ORDER, message.numbers
    if message.sent or message.is_likely:
        (number,) = numbers
        kind, numbers = _ALONE, (number, message.is_likely, *message.sent)
    return struct.pack(f"<B{len(numbers)}I", kind, *numbers)


def decode(body: bytes) -> Message:
    """Returns the message that `encode` has written. Raises `ProtocolError` for anything else."""
    if body[:1] == bytes([_VIA]):
        if len(body) <= _ROUTE.size:
            raise ProtocolError("a message that cannot be read: it says nothing")
        return Via(_ROUTE.unpack_from(body)[1], _plain(body[_ROUTE.size :]))
    return _plain(body)


def _plain(body: bytes) -> Plain:
    if body[0] == _RARE:
        return _CODEC.decode(body[1:])
    try:
        message = _often(body)
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"a message that cannot be read: {error}") from error
    if message is None:
        raise ProtocolError(f"no message begins with {body[0]}")
    return message


def _often(body: bytes) -> Plain | None:
    """Returns what happens often; None where the body is nothing such."""
    message: Plain | None = None
    if body[0] == _SUBMIT:
        message = Submit(_NUMBER.unpack_from(body)[1], body[_NUMBER.size :])
    elif body[0] == _SUBMIT_AHEAD:
        _, number, ahead = _AHEAD.unpack(body)
        message = Submit(number, ahead=ahead)
    elif body[0] == _DONE:
        message = Done(_NUMBER.unpack_from(body)[1], body[_NUMBER.size :])
    elif body[0] == _DETAILED:
        _, number, set_id = _DETAILS.unpack_from(body)
        message = Detailed(number, set_id, body[_DETAILS.size :])
    elif body[0] == _ORDER:
        message = Order(_numbers(body))
    elif body[0] == _ALONE:
        number, is_likely, *sent = _numbers(body)
        message = Order((number,), tuple(sent), bool(is_likely))
    return message


def _numbers(body: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{(len(body) - 1) // 4}I", body[1:])
