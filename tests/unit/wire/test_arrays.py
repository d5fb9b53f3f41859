"""Arrays and scalars of NumPy cross where a registry is, as what they were; false ones do not."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.errors import RemoteProtocolError, SerializationError
from lockstitch.trust.registry import Registry
from lockstitch.wire.arrays import array_of, described, scalar_of
from lockstitch.wire.encodings import PicklingRegistry
from lockstitch.wire.messages import Payload
from lockstitch.wire.pickling import pack
from lockstitch.wire.unpickling import discard, unpack
from tests.labels import steady


def registry() -> PicklingRegistry:
    registry = PicklingRegistry()
    registry.allowed = Registry()
    return registry


def crossed(value: Any) -> Any:
    body = pack(value, registry())[0]
    items = [None if item is None else memoryview(bytearray(item)) for item in body.items]
    return unpack(Payload(body.encoding, bytes(body.stream), items), registry())


ARRAYS = [
    numpy.arange(6.0),
    numpy.arange(24, dtype=numpy.int16).reshape(2, 3, 4),
    numpy.arange(24).reshape(4, 6).T,
    numpy.arange(24).reshape(4, 6)[:, ::2],
    numpy.zeros((0, 3)),
    numpy.array(7.5),
    numpy.array([True, False]),
    numpy.array(["a", "bcd"]),
    numpy.array([b"a", b"bc"]),
    numpy.array([1 + 2j], dtype=numpy.complex64),
    numpy.array(["2026-01-01", "NaT"], dtype="datetime64[D]"),
    numpy.arange(4, dtype=">i4"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda each: f"{each.dtype}{each.shape}")
def test_arrays_cross(array: Any) -> None:
    (arrived, again), arrived_too = crossed(([array, array], {"a": array}))
    for each in (arrived, arrived_too["a"]):
        assert each.dtype == array.dtype
        assert each.shape == array.shape
        numpy.testing.assert_array_equal(each, array)
        assert each.flags.writeable
    assert again is arrived


@pytest.mark.parametrize(
    "scalar",
    [numpy.float64(0.5), numpy.int8(-3), numpy.bool_(True), numpy.datetime64("2026-01-01")],
)
def test_scalars_cross(scalar: Any) -> None:
    arrived = crossed([scalar, {"x": scalar}])[0]
    assert arrived == scalar
    assert type(arrived) is type(scalar)


@pytest.mark.parametrize(
    "array", [numpy.array([object()]), numpy.zeros(2, dtype=[("a", "i4"), ("b", "O")])], ids=steady
)
def test_arrays_of_objects_are_refused_where_they_are_sent(array: Any) -> None:
    with pytest.raises(SerializationError, match="cannot be sent in a job with a registry"):
        pack([array], registry())


@pytest.mark.parametrize(
    ("dtype", "shape", "order"),
    [
        ("O", (1,), "C"),
        ("|O8", (1,), "C"),
        ("f8,O", (1,), "C"),
        ("<f8", (3,), "C"),
        ("<f8", (-1,), "C"),
        ("<f8", [1], "C"),
        ("<f8", (1,), "A"),
        ("<f99", (1,), "C"),
        (numpy.dtype("f8"), (1,), "C"),
        ("<f8", (True,), "C"),
        ("<f8", (0, 1 << 62, 1 << 62), "C"),
    ],
)
def test_what_makes_no_array_is_refused(dtype: Any, shape: Any, order: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="no array"):
        array_of(bytearray(8), dtype, shape, order)


@given(st.text(max_size=6), st.binary(max_size=16))
def test_any_scalar_is_made_or_refused(dtype: str, content: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(scalar_of(dtype, content), numpy.generic)


def test_nothing_is_copied_that_lies_in_one_piece() -> None:
    array = numpy.arange(1000)
    content, said = described(array)
    assert numpy.shares_memory(content, array)
    assert said == (array.dtype.str, (1000,), "C")


def test_discarding_where_a_registry_is_takes_no_memory_that_a_peer_asks_for() -> None:
    rebuilt = []
    pickling = registry()
    pickling.register(
        Fraction, lambda value, _: (value.numerator,), lambda _session, x: rebuilt.append(x)
    )
    body = pack([Fraction(3, 2), "rebuild"], pickling)[0]
    discard(body, pickling)
    assert rebuilt == [3]
    far_memo = b"\x80\x05]r" + (1 << 30).to_bytes(4, "little") + b"X\x07\x00\x00\x00rebuild."
    discard(Payload(body.encoding, far_memo, ()), pickling)  # C's machine would take 8 GiB for it
