"""What marshal would believe is walked over first; what we write ourselves always passes."""

from __future__ import annotations

import contextlib
import marshal
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.errors import RemoteProtocolError
from lockstitch.wire.scanning import check_marshal

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.just(...)
    | st.integers(-(1 << 130), 1 << 130)
    | st.floats()
    | st.complex_numbers()
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=6) | st.lists(inner, max_size=6).map(tuple),
    max_leaves=30,
)


@settings(max_examples=200, deadline=None)
@given(value=plain)
def test_whatever_our_messages_hold_passes(value: object) -> None:
    check_marshal(marshal.dumps((value, value, (value,))), 64)


def test_long_ones_too() -> None:
    ids = tuple((rank, 0, 1 << 40) for rank in range(2000))
    for value in (ids, [ids, ids], ("x" * 70_000, b"y" * 70_000), (("name",) * 300,)):
        check_marshal(marshal.dumps(value), 64)


def shared(kind: str) -> bytes:
    return bytes([ord(kind) | 0x80])


def laughs(depth: int) -> bytes:
    """A tuple of a pair of the same pair of …: two to the power of `depth` entries, written out."""
    inner = b"N"
    for index in reversed(range(depth)):
        inner = shared(")") + b"\x02" + inner + b"r" + struct.pack("<I", index + 1)
    return inner


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"(" + struct.pack("<I", 1 << 31), "larger than the frame"),
        (b"[" + struct.pack("<I", 1 << 30) + b"N", "larger than the frame"),
        ((b"(" + struct.pack("<I", 60)) * 9 + b"N" * 40, "larger than the frame"),
        (b"l" + struct.pack("<i", 1 << 30), "larger than the frame"),
        (b"s" + struct.pack("<I", 1 << 30), "larger than the frame"),
        (b")\x01" * 100 + b"N", "nested deeper than the limit of 64"),
        (shared(")") + b"\x01r" + struct.pack("<I", 0), "has not been there"),
        (b"r" + struct.pack("<I", 7), "has not been there"),
        (marshal.dumps(compile("1", "x", "eval")), "of type 'c'"),
        (marshal.dumps({1: 2}), "of type '{'"),
        (marshal.dumps({1, 2}), "of type '<'"),
        (b"NN", "shorter or longer"),
        (b"", "in the middle"),
        (b")\x02N", "in the middle|larger"),
        (b"i\x01", "in the middle|larger|longer"),
    ],
)
def test_what_would_harm_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        check_marshal(data, 64)


def test_repetitions_count() -> None:
    pair = ("a" * 40, 1.5)
    value: object = pair
    for _ in range(3):
        value = (value, value)
    check_marshal(marshal.dumps(value), 64)
    for _ in range(40):
        value = (value, value)
    with pytest.raises(RemoteProtocolError, match="larger than the frame"):
        check_marshal(marshal.dumps(value), 64)


@settings(max_examples=300, deadline=None)
@given(value=plain, place=st.floats(0, 1), byte=st.integers(0, 255))
def test_what_passes_can_be_read_in_its_own_size(value: object, place: float, byte: int) -> None:
    data = bytearray(marshal.dumps((value, (1, "x"), value)))
    data[min(int(place * len(data)), len(data) - 1)] = byte
    try:
        check_marshal(bytes(data), 64)
    except RemoteProtocolError:
        return
    with contextlib.suppress(ValueError, EOFError, TypeError):
        marshal.loads(bytes(data))
