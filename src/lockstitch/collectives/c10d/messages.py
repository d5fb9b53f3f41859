"""What the ranks tell rank 0, and what it answers, as bytes.

A rank describes a name once, under a number of its own; after that a submission takes 5 bytes, and
an order 4 for each operation. What happens seldom travels as JSON.
"""

from __future__ import annotations

import json
import struct
import typing
from dataclasses import dataclass

from lockstitch.errors import ProtocolError
from lockstitch.wire.checking import check_of

_NUMBER = struct.Struct("<BI")
_LENGTH = struct.Struct("<I")
LENGTH_SIZE = _LENGTH.size
_SUBMIT, _ORDER, _RARE = 1, 2, 3
MOST_BYTES = 1 << 26

ANYTHING = -1
"""The number of no operation."""
UNREACHED = "died, or its connection broke"
"""What is said of a rank of which only that is known that its connection has ended."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first word of a rank; the token proves that it has read the store."""

    rank: int
    token: str


@dataclass(frozen=True, slots=True)
class Define:
    """My number stands for this, in the process set of these ranks."""

    number: int
    set_id: int
    ranks: tuple[int, ...]
    content: str


@dataclass(frozen=True, slots=True)
class Submit:
    """I have submitted this."""

    number: int


@dataclass(frozen=True, slots=True)
class Join:
    """I am out of data."""

    at: int


@dataclass(frozen=True, slots=True)
class Leave:
    """I shut down. From rank 0 it is the last word: no orders come any more."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Whom do I wait for? With `ANYTHING`: does somebody wait for me?"""

    number: int


@dataclass(frozen=True, slots=True)
class Order:
    """Perform these now, as one; numbers are the addressee's own."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Detailed:
    """Perform this now. The descriptions by position, `None` for who has joined; `number` is -1
    for an addressee that has."""

    number: int
    set_id: int
    described: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be performed."""

    number: int
    objection: str
    text: str


@dataclass(frozen=True, slots=True)
class Joined:
    """All have joined."""

    last: int


@dataclass(frozen=True, slots=True)
class Fail:
    """I cannot go on, and say why."""

    why: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """All have said hello."""


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


Message = (
    Hello
    | Define
    | Submit
    | Join
    | Leave
    | Fail
    | Welcome
    | Ask
    | Order
    | Detailed
    | Refused
    | Joined
    | Lost
    | Missing
)
_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Hello,
        Define,
        Join,
        Leave,
        Fail,
        Welcome,
        Ask,
        Detailed,
        Refused,
        Joined,
        Lost,
        Missing,
    )
}
_CHECKS = {
    kind: [check_of(hint) for hint in typing.get_type_hints(kind).values()]
    for kind in _KINDS.values()
}


def encode(message: Message) -> bytes:
    """A message with its length before it."""
    if isinstance(message, Submit):
        body = _NUMBER.pack(_SUBMIT, message.number)
    elif isinstance(message, Order):
        count = len(message.numbers)
        body = struct.pack(f"<B{count}I", _ORDER, *message.numbers)
    else:
        names = message.__slots__
        fields = [getattr(message, name) for name in names]
        body = bytes([_RARE]) + json.dumps([type(message).__name__, *fields]).encode()
    return _LENGTH.pack(len(body)) + body


def length(head: bytes | bytearray) -> int:
    """How long the message is whose first four bytes these are."""
    (size,) = _LENGTH.unpack(head)
    if not 0 < size <= MOST_BYTES:
        raise ProtocolError(f"a message of {size} bytes")
    return int(size)


def decode(body: bytes | bytearray) -> Message:
    """What `encode` has made, without the length. Raises `ProtocolError` for anything else."""
    try:
        return _decode(body)
    except (ValueError, TypeError, struct.error, RecursionError) as error:
        raise ProtocolError(f"a message that cannot be read: {error}") from error


def _decode(body: bytes | bytearray) -> Message:
    if body[0] == _SUBMIT:
        return Submit(_NUMBER.unpack(body)[1])
    if body[0] == _ORDER:
        return Order(struct.unpack(f"<{(len(body) - 1) // 4}I", body[1:]))
    if body[0] != _RARE:
        raise ProtocolError(f"no message begins with {body[0]}")
    name, *fields = json.loads(bytes(body[1:]))
    if name not in _KINDS:
        raise ProtocolError(f"there is no message {name!r}")
    values = [tuple(field) if isinstance(field, list) else field for field in fields]
    kind = _KINDS[name]
    for check, value in zip(_CHECKS[kind], values, strict=True):
        if not check(value):
            raise ProtocolError(f"a {name} with {value!r}")
    message: Message = kind(*values)
    return message
