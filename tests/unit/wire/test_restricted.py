"""A pickle may name what is registered, and do nothing with it that an honest one would not."""

from __future__ import annotations

import collections
import contextlib
import datetime
import io
import os
import pickle
import struct
from dataclasses import dataclass
from enum import Enum, Flag
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.errors import PeerDiedError, RemoteProtocolError, SerializationError
from lockstitch.ids import WorkerInfo
from lockstitch.trust.registry import Registry
from lockstitch.wire.encodings import PICKLE, PicklingRegistry
from lockstitch.wire.messages import Payload
from lockstitch.wire.pickling import pack
from lockstitch.wire.restricted import RestrictedUnpickler
from lockstitch.wire.unpickling import load_plain, unpack


class Colour(Enum):
    RED = 1


class Side(Flag):
    LEFT = 1
    RIGHT = 2


@dataclass
class Point:
    x: float
    y: object = None


class Callable:
    def __call__(self, *args: object) -> object:
        raise AssertionError("it was called")


def registered(*things: object) -> PicklingRegistry:
    registry = PicklingRegistry()
    registry.allowed = Registry(things)
    return registry


def read(stream: bytes, *things: object) -> Any:
    return RestrictedUnpickler(io.BytesIO(stream), Registry(things), {}, ()).load()


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True], "b": (b"x", "y", {1, 2}, frozenset([3]))},
        [1 << 200, -1, 2j, bytearray(b"abc"), slice(1, 2)],
        collections.OrderedDict(a=1),
        collections.deque([1, 2], maxlen=3),
        torch.Size([2, 3]),
        [torch.float32, torch.device("cpu")],
        datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
        WorkerInfo("ps", 3),
        [Point(1.0, Point(2.0)), Colour.RED, Side.LEFT | Side.RIGHT, Point],
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_values_and_registered_ones_cross(value: object) -> None:
    registry = registered(Point, Colour, Side)
    payload, _ = pack([value], registry)
    again = unpack(payload, registry)[0]
    assert again == value
    assert type(again) is type(value)


def test_tensors_cross_beside_the_pickle() -> None:
    registry = registered(Point)
    shared = torch.arange(4.0)
    payload, _ = pack({"p": Point(1.0, shared), "q": shared}, registry)
    assert payload.encoding == PICKLE
    again = unpack(payload, registry)
    assert torch.equal(again["p"].y, shared)
    assert again["p"].y is again["q"]


def test_exceptions_keep_their_types() -> None:
    error = load_plain(pickle.dumps(PeerDiedError("ps", "gone"), 5), Registry())
    assert (type(error), error.worker) == (PeerDiedError, "ps")
    with pytest.raises(SerializationError, match="CalledProcessError is not registered"):
        load_plain(pickle.dumps(__import__("subprocess").CalledProcessError(1, "x")), Registry())


class Gadget:
    """What an attacker pickles."""

    def __init__(self, *reduced: object) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize(
    "gadget",
    [
        Gadget(os.system, ("touch /tmp/lockstitch-was-here",)),
        Gadget(eval, ("1 + 1",)),
        Gadget(getattr, (Point, "__init__")),
        Gadget(bytearray, (1 << 40,)),
        Gadget(list, (range(1 << 40),)),
        Gadget(torch.load, ("/tmp/x",)),
        Gadget(pickle.loads, (b"N.",)),
        torch.nn.Linear(1, 1),
    ],
    ids=["system", "eval", "getattr", "bytearray", "list", "load", "pickle", "module"],
)
def test_gadgets_are_refused_before_anything_happens(gadget: object) -> None:
    with pytest.raises(SerializationError, match="is not registered"):
        read(pickle.dumps(gadget, 5), Point)


GLOBAL = b"c" + __name__.encode() + b"\n"


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (GLOBAL + b"Point\n}\x8c\x01xK\x01sb.", "changes a class"),
        (GLOBAL + b"Point\nN}\x8c\x01xK\x01s\x86b.", "changes a class"),
        (b"\x80\x05" + GLOBAL + b"Callable\n)\x81)R.", "calls what it has not found"),
        (b"(lp0\n0cposix\nsystem\n.", "posix:system is not registered"),
        (b"P0\n.", "not readable"),
        (b"\x82\x01.", "not readable"),
        (b"(iposix\nsystem\n.", "not readable"),
        (b"N)R.", "calls what it has not found"),
        (b"", "not readable"),
        (b"\x80\x05\x95", "not readable"),
    ],
)
def test_what_only_an_attacker_writes_is_refused(stream: bytes, words: str) -> None:
    with pytest.raises((SerializationError, RemoteProtocolError), match=words):
        read(stream, Point, Callable)


def test_few_bytes_cannot_ask_for_much_memory() -> None:
    memo = b"\x80\x05Nr" + struct.pack("<I", (1 << 32) - 1) + b"."
    assert read(memo) is None
    for opcode in (b"\x96", b"\x8e", b"\x8d"):
        with pytest.raises(RemoteProtocolError, match="not readable"):
            read(b"\x80\x05" + opcode + struct.pack("<Q", 1 << 45) + b"abc.")


def test_closures_do_not_travel() -> None:
    with pytest.raises(SerializationError, match="code does not travel"):
        pack([lambda: 1], registered())


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    value=st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=6,
    ),
)
def test_mutated_pickles_are_read_or_refused(data: st.DataObject, value: object) -> None:
    stream = bytearray(pickle.dumps([value, Point(1.0), Colour.RED], 5))
    for _ in range(data.draw(st.integers(0, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    registry = registered(Point, Colour, Callable)
    with contextlib.suppress(RemoteProtocolError, SerializationError, TypeError, ValueError):
        unpack(Payload(PICKLE, bytes(stream), ()), registry)
