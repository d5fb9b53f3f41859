"""Messages as bytes."""

from __future__ import annotations

import pytest

from lockstitch.collectives.c10d import messages as m
from lockstitch.errors import ProtocolError

ALL = [
    m.Hello(3, "token"),
    m.Define(5, 0, (0, 1), '["allreduce","ü"]'),
    m.Submit(70000),
    m.Join(1 << 60),
    m.Leave(),
    m.Ask(2),
    m.Order((1, 2, 99999)),
    m.Detailed(-1, 2, ("x", None)),
    m.Refused(1, "mismatch", "text"),
    m.Joined(4),
    m.Lost(1),
    m.Missing(2, (0, 3)),
]


@pytest.mark.parametrize("message", ALL, ids=lambda each: type(each).__name__)
def test_message_survives_the_crossing(message: m.Message) -> None:
    content = m.encode(message)
    assert m.length(content[: m.LENGTH_SIZE]) == len(content) - m.LENGTH_SIZE
    assert m.decode(content[m.LENGTH_SIZE :]) == message


def test_steady_state_takes_few_bytes() -> None:
    assert len(m.encode(m.Submit(7))) == 9
    assert len(m.encode(m.Order((7,)))) == 9


@pytest.mark.parametrize("body", [b"\x09", b'\x03["Nothing"]'])
def test_nonsense_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        m.decode(body)


@pytest.mark.parametrize("head", [b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_impossible_lengths_are_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        m.length(head)


@pytest.mark.parametrize(
    "body",
    [
        b"\x01",
        b"\x02abc",
        b"\x03",
        b"\x03[]",
        b'\x03["Hello"]',
        b'\x03["Hello", 1, 2, 3]',
        b"\x03" + b"[" * 100_000,
        b'\x03[["Hello"]]',
        b"\xff",
        b"\x03\xff",
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        m.decode(body)
