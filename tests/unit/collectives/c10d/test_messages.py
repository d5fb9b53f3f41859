"""Messages as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.collectives.c10d import messages as m
from lockstitch.errors import ProtocolError

ALL = [
    m.Define(5, 0, (0, 1), '["allreduce","ü"]'),
    m.Submit(70000),
    m.Submit(7, b"\x00\x01bytes"),
    m.Done(70000, b"\xff\x00"),
    m.Join(),
    m.Leave(),
    m.Ask(2),
    m.Submit(7, ahead=70000),
    m.Order((1, 2, 99999)),
    m.Order((70000,), (1, 70000), True),
    m.Order((3,), (), True),
    m.Order((3,), (4, 5)),
    m.Detailed(-1, 2, m.pack_described(["x", None])),
    m.Refused(1, "mismatch", "text"),
    m.Joined(4),
    m.Lost(1),
    m.Missing(2, (0, 3)),
]


@pytest.mark.parametrize("message", ALL, ids=lambda each: type(each).__name__)
def test_message_survives_the_crossing(message: m.Message) -> None:
    assert m.decode(m.encode(message)) == message


def test_steady_state_takes_few_bytes() -> None:
    assert len(m.encode(m.Submit(7))) == 5
    assert len(m.encode(m.Order((7,)))) == 5


@pytest.mark.parametrize("body", [b"\x09", b'\x03["Nothing"]'])
def test_nonsense_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        m.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b"\x01",
        b"\x07abc",
        b"\x08abcd",
        b"\x02abc",
        b"\x04abc",
        b"\x05abc",
        b"\x03",
        b"\x03[]",
        b'\x03["JoinAll"]',
        b'\x03["Join", 1, 2, 3]',
        b'\x03["JoinAll", true]',
        b"\x03" + b"[" * 100_000,
        b'\x03[["Join"]]',
        b"\xff",
        b"\x03\xff",
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        m.decode(body)


@given(st.lists(st.sampled_from(["x", "y", "", None])))
def test_descriptions_survive_the_crossing(described: list[str | None]) -> None:
    assert m.unpack_described(m.pack_described(described)) == tuple(described)


def test_descriptions_of_many_that_agree_take_few_bytes() -> None:
    assert len(m.pack_described(["a description"] * 100_000)) < 50


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'[["x"],[[1,1]]]', b'[["x"],[[1,-1]]]', b'[["x"],[[1000000000,0]]]']
)
def test_descriptions_that_cannot_be_are_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        m.unpack_described(content)
