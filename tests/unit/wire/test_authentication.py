"""What is sealed arrives as it was sent, in its order, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.errors import RemoteProtocolError
from lockstitch.wire.authentication import (
    ONE_MAC_BYTES,
    AuthenticatedFrameDecoder,
    FrameAuthenticator,
)
from lockstitch.wire.encoding import encode
from lockstitch.wire.encodings import PICKLE
from lockstitch.wire.frames import FrameLimits
from lockstitch.wire.messages import Call, ContextReleased, Message, Payload, Reply

if TYPE_CHECKING:
    from lockstitch.wire.decoding import FrameDecoder

KEY = bytes(range(32))


def call(number: int, *items: torch.Tensor, stream: bytes = b"...") -> Call:
    return Call(number, 3, None, None, None, Payload(PICKLE, stream, items))


def authenticated(messages: list[Message], key: bytes = KEY) -> list[bytes]:
    authenticate, place, frames = FrameAuthenticator(key), 0, []
    for message in messages:
        frames.append(b"".join(map(bytes, authenticate(place, encode(message, with_digests=True)))))
        place += len(frames[-1])
    return frames


def received(data: bytes, decoder: FrameDecoder | None = None) -> list[Message]:
    decoder = decoder or AuthenticatedFrameDecoder(KEY)
    decoder.feed(data)
    return list(decoder.messages)


SMALL, LARGE = torch.arange(6.0), torch.arange(10_000.0)
MANY = [torch.full((2000,), float(n)) for n in range(12)]
MESSAGES: list[Message] = [
    ContextReleased(7),
    call(1, SMALL, LARGE),
    call(2, *MANY),  # over 64 KiB in the frame
    call(3, stream=bytes(range(256)) * 100),  # a stream behind the frame
    Reply(9, None, Payload(0, b"", (LARGE,))),
]


def test_messages_arrive_in_any_pieces() -> None:
    frames = authenticated(MESSAGES)
    assert max(map(len, frames)) > ONE_MAC_BYTES
    data = b"".join(frames)
    for piece in (1, 7, 1000, len(data)):
        decoder = AuthenticatedFrameDecoder(KEY)
        step = piece if piece > 1 else 997
        for start in range(0, len(data), step):
            decoder.feed(data[start : start + step])
        arrived = list(decoder.messages)
        assert [type(each) for each in arrived] == [type(each) for each in MESSAGES]
        assert [each.request for each in arrived[1:]] == [1, 2, 3, 9]  # type: ignore[attr-defined]
        assert torch.equal(arrived[1].body.items[1], LARGE)  # type: ignore[attr-defined]
        assert torch.equal(arrived[2].body.items[11], MANY[11])  # type: ignore[attr-defined]
        assert bytes(arrived[3].body.stream) == bytes(range(256)) * 100  # type: ignore[attr-defined]


def test_byte_by_byte_too() -> None:
    decoder = AuthenticatedFrameDecoder(KEY)
    for byte in b"".join(authenticated([call(1, SMALL), ContextReleased(2)])):
        decoder.feed(bytes([byte]))
    assert len(decoder.messages) == 2


@pytest.mark.parametrize(
    "alter",
    [
        lambda frames: [frames[1]],
        lambda frames: [frames[0], frames[0]],
        lambda frames: [frames[0], frames[2]],
        lambda frames: [frames[1], frames[0]],
        lambda frames: authenticated([ContextReleased(0)], bytes(32)),
        lambda frames: [b"".join(encode(ContextReleased(0)))],
        lambda frames: [bytes(100)],
    ],
    ids=["first lost", "repeated", "one left out", "reordered", "another key", "no seal", "zeros"],
)
def test_what_was_not_sent_there_and_then_is_refused(alter) -> None:  # type: ignore[no-untyped-def]
    frames = authenticated([ContextReleased(number) for number in range(3)])
    with pytest.raises(RemoteProtocolError, match="seal is broken"):
        received(b"".join(alter(frames)))


@settings(max_examples=150, deadline=None)
@given(which=st.integers(0, len(MESSAGES) - 1), place=st.floats(0, 1), bit=st.integers(0, 7))
def test_no_bit_of_a_frame_can_be_changed(which: int, place: float, bit: int) -> None:
    (frame,) = authenticated([MESSAGES[which]])
    bulk = sum(len(memoryview(each)) for each in encode(MESSAGES[which], with_digests=True)[1:])
    covered = len(frame) - (0 if which == 3 else bulk)  # tensors in bulk are not covered
    changed = bytearray(frame)
    changed[min(int(place * covered), covered - 1)] ^= 1 << bit
    decoder = AuthenticatedFrameDecoder(KEY)
    try:
        decoder.feed(changed)
    except RemoteProtocolError:
        return
    assert not decoder.messages  # it waits for more, of which it knows that it is not too much
    assert len(decoder.space()) <= 128 * 1024 + ONE_MAC_BYTES


def test_length_that_nobody_sealed_is_not_waited_for() -> None:
    (frame,) = authenticated([call(2, *MANY)])
    changed = bytearray(frame)
    changed[33 + 3] = 0x0E  # the highest byte of the inline length
    decoder = AuthenticatedFrameDecoder(KEY, FrameLimits(inline_bytes=1 << 30))
    with pytest.raises(RemoteProtocolError, match="seal is broken"):
        decoder.feed(changed[:60])


def test_limits_hold_also_for_what_is_sealed() -> None:
    (frame,) = authenticated([call(2, *MANY)])
    with pytest.raises(RemoteProtocolError, match="more than is allowed"):
        received(frame, AuthenticatedFrameDecoder(KEY, FrameLimits(inline_bytes=70_000)))
