"""Messages survive the cut into arbitrary pieces; broken frames end in RemoteProtocolError, not in
a crash, a hang or a huge allocation; no interrupt loses a byte."""

from __future__ import annotations

import dataclasses
import marshal
import resource
import tracemalloc
import typing
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.errors import LocalProtocolError, RemoteProtocolError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.encodings import PICKLE, PicklingRegistry
from lockstitch.wire.frames import HEADER, FrameLimits
from lockstitch.wire.messages import (
    KINDS,
    Call,
    Gradient,
    Leave,
    Message,
    Payload,
    Reply,
    Stitch,
)
from lockstitch.wire.pickling import pack
from lockstitch.wire.tensors import INLINE_BYTES
from lockstitch.wire.unpickling import unpack
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere
from tests.unit.wire.route import decode, frame_of

if TYPE_CHECKING:
    from collections.abc import Sequence

REGISTRY = PicklingRegistry()
STITCH = Stitch(7 << 48, GlobalId(1, 0, 5), (0, 2), (WorkerId(1, 0), WorkerId(2, 3)))
VALUES: dict[Any, Any] = {
    int: 2**40,
    bool: True,
    str: "ä text",
    bytes: b"bytes",
    float: 1.5,
    GlobalId: GlobalId(3, 1, 2**36),
    WorkerId: WorkerId(2, 1),
    Stitch: STITCH,
    Payload: Payload(PICKLE, b"stream", ()),
    type(None): None,
}


def example(annotation: Any) -> Any:
    """A value of that annotation, with ids in all places where there may be some."""
    if annotation in VALUES:
        return VALUES[annotation]
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        if arguments[-1] is Ellipsis:
            return (example(arguments[0]),) * 3
        return tuple(map(example, arguments))
    return example(next(each for each in arguments if each is not type(None)))


def example_of(cls: type[Message]) -> Message:
    hints = typing.get_type_hints(cls)
    return cls(*(example(hints[field.name]) for field in dataclasses.fields(cls)))  # type: ignore[arg-type]


def type_tree(value: Any) -> Any:
    return (type(value), [type_tree(each) for each in value] if isinstance(value, tuple) else None)


def reply(value: object, request: int = 1) -> Reply:
    return Reply(request, None, pack(value, REGISTRY)[0])


def values(messages: Sequence[Message]) -> list[Any]:
    return [unpack(message.body, REGISTRY) for message in messages]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- every message


@pytest.mark.parametrize("cls", KINDS.values(), ids=lambda cls: cls.__name__)
def test_every_message_arrives_with_the_types_of_its_fields(cls: type[Message]) -> None:
    message = example_of(cls)
    (arrived,) = decode([frame_of(message)])
    assert type(arrived) is cls
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        sent, got = getattr(message, field.name), getattr(arrived, field.name)
        assert got == sent
        assert type_tree(got) == type_tree(sent)


def test_optional_fields_arrive_as_none() -> None:
    call = Call(1, 2, None, None, None, Payload(0, b"", ()))
    assert decode([frame_of(call)]) == [call]
    stitch = STITCH._replace(message=None, tensors=(), workers=())
    (arrived,) = decode([frame_of(dataclasses.replace(call, stitch=stitch))])
    assert arrived.stitch == stitch  # type: ignore[attr-defined]


def test_small_message_is_one_buffer_and_large_tensors_are_sent_from_their_own_memory() -> None:
    assert len(encode(reply((1, torch.ones(5))))) == 1
    tensor = torch.zeros(INLINE_BYTES)
    buffers = encode(reply((tensor, torch.ones(2))))
    assert len(buffers) == 2
    tensor.fill_(1)
    assert bytes(buffers[1][:4]) == bytes(tensor[:1].numpy())


def test_stitched_tensors_stay_plain_and_the_others_become_leaves() -> None:
    tensors = [torch.ones(2, requires_grad=True) for _ in range(3)]
    message = Reply(1, STITCH, Payload(PICKLE, b"x", tensors))
    (arrived,) = decode([frame_of(message)])
    assert [item.requires_grad for item in arrived.body.items] == [False, True, False]  # type: ignore[attr-defined]


def test_items_may_be_absent() -> None:
    items = [None, torch.ones(2), None]
    gradient = Gradient(
        1, GlobalId(0, 0, 1), 0, False, GlobalId(0, 0, 2), (), (), None, Payload(0, b"", items)
    )
    (arrived,) = decode([frame_of(gradient)])
    assert arrived.body.items[0] is None  # type: ignore[attr-defined]
    assert torch.equal(arrived.body.items[1], torch.ones(2))  # type: ignore[attr-defined]


# ---------------------------------------------------------------- pieces

BULK = torch.arange(INLINE_BYTES, dtype=torch.int32)
MESSAGES = [
    reply(1),
    Leave(WorkerId(1, 0)),
    reply({"a": BULK, "b": (torch.ones(3), BULK[5:50])}),
    reply("x" * 3 * INLINE_BYTES),
    reply([torch.ones(0), torch.ones(2), b"y" * 70_000]),
    reply(BULK),
    Leave(WorkerId(0, 1)),
]
STREAM = b"".join(map(frame_of, MESSAGES))


def assert_all_arrived(messages: Sequence[Message]) -> None:
    assert [type(each) for each in messages] == [type(each) for each in MESSAGES]
    big = values(messages[2:3])[0]
    assert torch.equal(big["a"], BULK)
    assert torch.equal(big["b"][1], BULK[5:50])
    assert values(messages[3:4]) == ["x" * 3 * INLINE_BYTES]
    assert values(messages[4:5])[0][2] == b"y" * 70_000
    assert torch.equal(values(messages[5:6])[0], BULK)
    assert messages[6] == MESSAGES[6]


@given(
    st.lists(st.integers(1, 100) | st.integers(1, 40_000), min_size=1, max_size=12),
    st.sampled_from([64, 1000, 128 * 1024]),
)
def test_messages_survive_any_cut(sizes: list[int], capacity: int) -> None:
    decoder = FrameDecoder(capacity=capacity)
    position = turn = 0
    while position < len(STREAM):
        size = sizes[turn % len(sizes)] * (1 + turn // 50)
        decoder.feed(STREAM[position : position + size])
        position += size
        turn += 1
    assert_all_arrived(list(decoder.messages))


def test_messages_survive_byte_by_byte() -> None:
    small = frame_of(reply((1, "a", torch.ones(3)))) * 3
    messages = decode(bytes([byte]) for byte in small)
    assert len(messages) == 3


def test_space_is_never_empty() -> None:
    decoder = FrameDecoder(capacity=32)
    for byte in STREAM[:5000]:
        assert len(decoder.space()) > 0
        decoder.feed(bytes([byte]))


def test_several_counts_are_absorbed_together() -> None:
    decoder = FrameDecoder()
    data = frame_of(reply(1)) + frame_of(reply(2))
    decoder.space()[: len(data)] = data
    decoder.counts += [10, len(data) - 10]
    decoder.absorb()
    assert values(decoder.messages) == [1, 2]
    assert decoder.counts == []


def test_bulk_is_received_in_place() -> None:
    data = frame_of(reply(BULK))
    inline = len(data) - BULK.nbytes
    decoder = FrameDecoder()
    decoder.feed(data[:inline])
    space = decoder.space()
    assert len(space) == BULK.nbytes
    space[:] = data[inline:]
    decoder.counts.append(BULK.nbytes)
    decoder.absorb()
    (message,) = decoder.messages
    arrived = message.body.items[0]  # type: ignore[attr-defined]
    address = torch.frombuffer(space, dtype=torch.uint8).data_ptr()
    assert arrived.data_ptr() == address


def test_buffer_grows_for_one_large_frame_and_shrinks_again() -> None:
    decoder = FrameDecoder(capacity=1024)
    many = reply([torch.ones(100, dtype=torch.uint8) for _ in range(200)])
    decoder.feed(frame_of(many))
    decoder.feed(frame_of(reply(1)) * 500)
    assert len(decoder.messages) == 501
    assert len(decoder.space()) <= 1024


# ---------------------------------------------------------------- limits


def test_message_beyond_the_limits_is_not_sent() -> None:
    limits = FrameLimits(inline_bytes=1 << 20, bulk_bytes=1 << 20, items=10)
    with pytest.raises(LocalProtocolError, match="send less at a time"):
        encode(reply(torch.zeros(1 << 20)), limits)
    with pytest.raises(LocalProtocolError, match="tensors exceeds the limit of 10"):
        encode(reply([torch.zeros(1) for _ in range(11)]), limits)
    with pytest.raises(LocalProtocolError, match="send less at a time"):
        encode(
            reply([torch.zeros(4000) for _ in range(9)]),
            dataclasses.replace(limits, inline_bytes=50_000),
        )
    with pytest.raises(LocalProtocolError, match="send less at a time"):
        encode(reply(1), dataclasses.replace(limits, inline_bytes=2))


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(2**31, 1, 0, 0, 0, 0),
        HEADER.pack(10, 1, 0, 0, 0, 2**50),
        HEADER.pack(10, 1, 1, 0, 0, 0),
        HEADER.pack(10, 1, 0, 0, 11, 0) + bytes(10),
        HEADER.pack(1, 200, 0, 0, 0, 0) + marshal.dumps(()),
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
    ],
    ids=["inline", "bulk", "flags", "small", "kind", "http"],
)
def test_header_that_cannot_be_is_refused_before_anything_is_allocated(header: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode([header, bytes(100)])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def framed(number: int, fields: object, tail: bytes = b"", bulk: int = 0, small: int = 0) -> bytes:
    inline = marshal.dumps(fields) + tail
    return HEADER.pack(len(inline), number, 0, 0, small, bulk) + inline


@pytest.mark.parametrize(
    "data",
    [
        framed(10, ()),
        framed(10, (1, 2)),
        framed(10, [(1, 2)]),
        framed(10, 3),
        framed(10, (7,)),
        framed(10, ((1, 2, 3),)),
        framed(10, ((1, 2),), bulk=5),  # bytes that nothing asks for
        framed(10, ((1, 2),), b"123", small=3),
        framed(4, (1, None, 3, b"", ()), bulk=5),
        framed(4, (1, None, 3, b"", 7)),
        framed(4, (1, None, 3, b"", None)),
        framed(4, (1, None, 3, None, ())),
        framed(4, (1, None, 3, "text", ())),
        framed(4, (1, None, 3, -5, ()), bulk=0),
        framed(4, (1, None, 3, 2**70, ()), bulk=0),
        framed(4, (1, None, "three", b"", ())),
        framed(4, (1, (1, 2), 3, b"", ())),
        framed(4, (1, 5, 3, b"", ())),
        framed(4, (1, (1, None, 5, ()), 0, b"", ((0x104, (3,)),)), b"abc", small=3),
        framed(4, (1, None, 3, b"", ("x",))),
        framed(4, (1, None, 3, b"", ((0, (-1,)),))),
        framed(17, ((1, 2),)),
        framed(37, (1, (0, 0, 0), 5, 6)),
        framed(37, (1, (0, 0, 0), ((5,),), ())),
        HEADER.pack(3, 4, 0, 0, 0, 0) + b"\xff\xff\xff",
        HEADER.pack(0, 4, 0, 0, 0, 0),
    ],
    ids=repr,
)
def test_fields_that_cannot_be_are_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        repr(values(decode([data])))


@pytest.fixture(scope="module")
def _little_memory() -> Any:
    """A huge allocation fails here, instead of being granted and never touched."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.lists(inner, max_size=4),
    max_leaves=12,
)
LIMITS = FrameLimits(inline_bytes=1 << 16, bulk_bytes=1 << 16, items=100)


def decode_all(data: bytes) -> None:
    """Decodes, and looks at what came out: nothing but RemoteProtocolError may be raised."""
    decoder = FrameDecoder(LIMITS)
    try:
        decoder.feed(data)
    except RemoteProtocolError:
        return
    repr(decoder.messages)


@pytest.mark.usefixtures("_little_memory")
@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    decode_all(data)


@pytest.mark.usefixtures("_little_memory")
@given(
    st.sampled_from(sorted(KINDS)),
    ANYTHING,
    st.binary(max_size=40),
    st.integers(0, 100),
    st.integers(0, 50),
)
def test_arbitrary_fields(number: int, fields: object, tail: bytes, bulk: int, small: int) -> None:
    decode_all(framed(number, fields, tail, bulk, small) + bytes(bulk))


@pytest.mark.usefixtures("_little_memory")
@given(st.sampled_from(sorted(KINDS)), st.lists(ANYTHING, max_size=8), st.data())
def test_fields_of_which_one_is_wrong(number: int, others: list[Any], data: st.DataObject) -> None:
    message = example_of(KINDS[number])
    decoder_input = frame_of(message)
    fields = list(marshal.loads(decoder_input[HEADER.size :]))
    for other in others[:2]:
        fields[data.draw(st.integers(0, len(fields) - 1))] = other
    decode_all(framed(number, tuple(fields)))


@pytest.mark.usefixtures("_little_memory")
@given(st.integers(0, len(STREAM) - 1), st.integers(0, 255), st.integers(0, 300))
def test_streams_of_which_one_byte_is_wrong(place: int, byte: int, cut: int) -> None:
    small = b"".join(
        map(
            frame_of,
            (reply((1, torch.ones(3), "abc")), MESSAGES[1], reply({"k": torch.ones(2).t()})),
        )
    )
    place %= len(small)
    decode_all(small[:place] + bytes([byte]) + small[place + 1 :] + bytes(cut))


# ---------------------------------------------------------------- interrupts


def test_no_interrupt_loses_a_byte_or_a_message() -> None:
    """A reader is struck at one point, and another one goes on where it was."""

    def attempt(number: int) -> Interrupter:
        decoder = FrameDecoder(capacity=512)
        rest = memoryview(STREAM)

        def receive_once() -> None:
            # As a connection does it: the bytes and their number come in one call.
            nonlocal rest
            view = decoder.space()
            count = min(len(view), len(rest), 3000)
            view[:count] = rest[:count]
            decoder.counts.append(count)
            rest = rest[count:]

        with interrupted(
            number, "lockstitch.wire.decoding", "lockstitch.wire.tensor_receiver"
        ) as striker:
            while len(rest):
                if not decoder.counts:
                    receive_once()
                decoder.absorb()
        if decoder.counts or decoder.is_torn:
            decoder.absorb()
        while len(rest):
            receive_once()
            decoder.absorb()
        messages = list(decoder.messages)
        assert_all_arrived(messages)
        return striker

    assert strike_everywhere(attempt) > 200


def small_tensors() -> list[torch.Tensor]:
    return [
        torch.ones(3),
        torch.arange(4),
        torch.zeros(0),
        torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_small_tensors_arrive_alike_the_first_time_and_the_short_way(count: int) -> None:
    sent = small_tensors()[:count]
    for _ in range(2):  # forms that came before are allocated by their like
        (value,) = values(decode([frame_of(reply(tuple(sent)))]))
        assert [type(each) for each in value] == [torch.Tensor] * count
        for got, tensor in zip(value, sent, strict=True):
            assert torch.equal(got, tensor)
            assert (got.dtype, got.requires_grad) == (tensor.dtype, tensor.requires_grad)


def test_small_tensors_that_share_a_storage_still_do_so() -> None:
    base = torch.zeros(6)
    (value,) = values(decode([frame_of(reply((base[:3], base[2:])))]))
    value[0].fill_(1.0)
    assert value[1].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_small_tensors_are_no_inference_tensors_whoever_reads_them() -> None:
    frames = [frame_of(reply((torch.ones(3), torch.ones(2)))) for _ in range(2)]
    with torch.inference_mode():
        arrived = values(decode(frames))
    assert not any(tensor.is_inference() for pair in arrived for tensor in pair)
