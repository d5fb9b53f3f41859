"""What a launcher and a worker say to each other, as JSON: never as a pickle."""

from __future__ import annotations

import dataclasses
import enum
import json
from dataclasses import dataclass

from lockstitch.errors import RemoteProtocolError


class UpdateKind(enum.IntFlag):
    """What has happened to the workers, with Horovod's numbers."""

    NOTHING = 0
    REMOVED = 1
    ADDED = 2
    MIXED = 3


@dataclass(frozen=True, slots=True)
class Hello:
    """Worker: which one it is; the first message of a connection."""

    worker: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker: it is in no world (any more) and wants a place in the next."""

    port: int = 0
    """Of its host: there it can await the others, should it be rank 0 and they on other hosts."""


@dataclass(frozen=True, slots=True)
class Place:
    """Launcher: a place in a new world, whose ranks meet at a store of their own. (Which, the table
    of places does not know.)"""

    generation: int
    rank: int
    size: int
    store: str


@dataclass(frozen=True, slots=True)
class Update:
    """Launcher: workers wait to come in, or are to go. `number` grows from one to the next."""

    number: int
    kind: int


@dataclass(frozen=True, slots=True)
class Void:
    """Launcher: a rank of that world has died. Who is in it sees that without being told; this is
    for those who still wait to meet it."""

    generation: int


@dataclass(frozen=True, slots=True)
class Over:
    """Launcher: there will be no place for this worker any more."""

    reason: str


Message = Hello | Ready | Place | Update | Void | Over

_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Hello, Ready, Place, Update, Void, Over)
}


def encode(message: Message) -> bytes:
    """The message as text."""
    content = {"message": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(content).encode()


def decode(content: bytes) -> Message:
    """The reverse; `RemoteProtocolError` when it is no message."""
    try:
        fields = json.loads(content)
        kind = _KINDS[fields.pop("message")]
        message = kind(**fields)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a message of the board: {content[:80]!r}") from error
    for field in dataclasses.fields(kind):
        if type(getattr(message, field.name)).__name__ != field.type:
            raise RemoteProtocolError(f"{field.name!r} of a {kind.__name__} is no {field.type}")
    return message
