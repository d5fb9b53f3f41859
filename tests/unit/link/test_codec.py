"""Records survive the way; whatever is no record is refused, with the reason, and nothing else."""

from __future__ import annotations

import dataclasses
import enum
import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.errors import ProtocolError, RemoteProtocolError
from lockstitch.link.codec import Codec


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    scale: float = 1.0
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True)
class Record:
    number: int
    text: str = ""
    is_so: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    pair: tuple[int, str] | None = None
    inner: Inner | None = None
    choice: Literal["one", "two"] = "one"
    texts: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Empty:
    pass


ONE = Codec(Record, complaint="no record")
NAMED = Codec(Record, complaint="no record", by_name=True)
SEVERAL = Codec(Record, Empty, complaint="no message", error=ProtocolError)

inners = st.builds(Inner, st.floats(allow_nan=False), st.sampled_from(Colour))
numbers = st.integers(-(1 << 80), (1 << 80) - 1)
records = st.builds(
    Record,
    numbers,
    st.text(),
    st.booleans(),
    st.lists(st.lists(numbers).map(tuple)).map(tuple),
    st.none() | st.tuples(numbers, st.text()),
    st.none() | inners,
    st.sampled_from(["one", "two"]),
    st.lists(st.none() | st.text()).map(tuple),
)


@given(records)
def test_records_survive_the_way(record: Record) -> None:
    for codec in (ONE, NAMED, SEVERAL):
        assert codec.decode(codec.encode(record)) == record
        assert codec.decode(bytearray(codec.encode(record))) == record
    assert SEVERAL.decode(SEVERAL.encode(Empty())) == Empty()


WRONG: list[tuple[str, Any]] = [
    ("number", "1"),
    ("number", True),
    ("number", 1.0),
    ("number", None),
    ("number", 1 << 80),
    ("text", 3),
    ("text", ["x"]),
    ("is_so", 1),
    ("shapes", [1]),
    ("shapes", [[1.5]]),
    ("shapes", "12"),
    ("shapes", {"a": 1}),
    ("pair", [1]),
    ("pair", [1, "x", 2]),
    ("pair", ["x", 1]),
    ("inner", [1.0]),
    ("inner", [1.0, "green"]),
    ("inner", [1.0, ["red"]]),
    ("inner", {"scale": 1.0}),
    ("choice", "three"),
    ("choice", ["one"]),
    ("texts", [1]),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_fields_of_other_types_are_refused_by_name(field: str, value: Any) -> None:
    names = [each.name for each in dataclasses.fields(Record)]
    entry = dict(zip(names, json.loads(ONE.encode(Record(1))), strict=True))
    entry[field] = value
    for codec, plain in (
        (NAMED, entry),
        (ONE, [*entry.values()]),
        (SEVERAL, ["Record", *entry.values()]),
    ):
        with pytest.raises(ProtocolError, match=f"^no (record|message): .*'{field}' of a Record"):
            codec.decode(json.dumps(plain).encode())


@pytest.mark.parametrize("codec", [ONE, NAMED, SEVERAL], ids=["one", "named", "several"])
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"7", b"null", b"[]", b"{}", b"\xff", b'["x"]', b'[["Record"]]', b'["Record"]'),
        *(b'["Record", 1, 2, 3]', b"[" * 100_000, b"9" * 10_000, b'{"text": "x"}'),
        b'["Empty", 1]',
    ],
)
def test_whatever_else_is_refused_with_what_was_said(codec: Codec[Any], content: bytes) -> None:
    with pytest.raises(ProtocolError, match="^no (record|message): b['\"]") as caught:
        codec.decode(content)
    assert len(str(caught.value)) < 600
    assert isinstance(caught.value, RemoteProtocolError) == (codec is not SEVERAL)


@given(st.binary(max_size=40) | st.text().map(str.encode))
def test_no_bytes_do_anything_else_than_being_refused(content: bytes) -> None:
    for codec in (ONE, NAMED, SEVERAL):
        with pytest.raises(ProtocolError):
            codec.decode(content)


def test_by_name_what_has_its_default_is_not_written() -> None:
    assert NAMED.encode(Record(1)) == b'{"number":1}'
    assert json.loads(NAMED.encode(Record(1, text="x"))) == {"number": 1, "text": "x"}


def test_by_name_other_versions_may_know_more_or_less() -> None:
    assert NAMED.decode(b'{"number": 1, "new": {"x": 1}}') == Record(1)
    with pytest.raises(ProtocolError, match="a Record has a 'number'"):
        NAMED.decode(b'{"text": "x"}')
    with pytest.raises(ProtocolError, match="a Record has 8 fields"):
        ONE.decode(b"[1]")
