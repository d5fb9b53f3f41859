"""The whole route of a value without I/O: packed, framed, cut into pieces, decoded, unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.encodings import PicklingRegistry
from lockstitch.wire.frames import DEFAULT_LIMITS, FrameLimits
from lockstitch.wire.messages import Message, Reply
from lockstitch.wire.pickling import pack
from lockstitch.wire.unpickling import unpack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.wire.messages import Payload

REGISTRY = PicklingRegistry()


def frame_of(message: Message, limits: FrameLimits = DEFAULT_LIMITS) -> bytes:
    return b"".join(encode(message, limits))


def decode(pieces: Iterable[bytes], decoder: FrameDecoder | None = None) -> list[Message]:
    decoder = decoder or FrameDecoder()
    for piece in pieces:
        decoder.feed(piece)
    return list(decoder.messages)


def cross_payload(payload: Payload) -> Payload:
    (message,) = decode([frame_of(Reply(1, None, payload))])
    assert isinstance(message, Reply)
    return message.body


def cross(value: object, registry: PicklingRegistry = REGISTRY) -> Any:
    """What arrives when `value` is sent."""
    return unpack(cross_payload(pack(value, registry)[0]), registry)
