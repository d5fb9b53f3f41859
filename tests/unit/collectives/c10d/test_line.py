"""Whole messages over a connection, and who may send them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.collectives.c10d.line import Line, Password
from lockstitch.collectives.c10d.messages import ANYTHING, Ask, Submit, encode
from lockstitch.errors import ProtocolError
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Sequence

SECRET = Secret(bytes(range(32)))
PASSWORD = Password("word", SECRET)


class Tape:
    """A connection that gives what it was given, in pieces."""

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        self.pieces = list(pieces)

    def send(self, buffers: Sequence[bytes]) -> None:
        self.pieces.append(b"".join(buffers))

    def receive_into(self, view: memoryview, counts: list[int], _timeout: float | None) -> None:
        piece = self.pieces.pop(0) if self.pieces else b""
        view[: len(piece)] = piece
        counts.append(len(piece))

    def close(self) -> None: ...


def line_of(pieces: Sequence[bytes], **options: Any) -> Line:
    return Line(Tape(pieces), **options)  # type: ignore[arg-type]


def test_password_is_made_of_the_secret_where_there_is_one() -> None:
    assert Password("word", None).of(1) == "word"
    assert PASSWORD.of(1) != PASSWORD.of(2)
    assert PASSWORD.of(1) != Password("another session", SECRET).of(1)
    assert PASSWORD.of(1) != Password("word", Secret.make()).of(1)


def test_without_a_secret_there_are_no_seals() -> None:
    assert Password("word", None).seals(1) is None


def test_messages_come_whole_however_the_bytes_come() -> None:
    content = encode(Submit(1)) + encode(Ask(ANYTHING))
    line = line_of([content[at : at + 1] for at in range(len(content))])
    found = [message for _ in content for message in line.read()]
    assert found == [Submit(1), Ask(ANYTHING)]
    with pytest.raises(ConnectionError, match="the other end has closed"):
        list(line.read())


def test_whoever_has_not_said_who_it_is_sends_little() -> None:
    line = line_of([encode(Ask(ANYTHING))], most_bytes=4)
    with pytest.raises(ProtocolError, match="by one who has not said who it is"):
        list(line.read())


def test_sealed_messages_are_read_in_their_order_only() -> None:
    by, to = PASSWORD.seals(1) or pytest.fail("there is a secret")
    tape = Tape()
    writer = Line(tape)  # type: ignore[arg-type]
    writer.protect(by, to)
    for number in (1, 2):
        writer.send(Submit(number))
    readers = [line_of(tape.pieces), line_of(tape.pieces[::-1])]
    for reader in readers:
        again_by, _ = PASSWORD.seals(1) or pytest.fail("there is a secret")
        reader.protect(to, again_by)
    assert [*readers[0].read(), *readers[0].read()] == [Submit(1), Submit(2)]
    with pytest.raises(ProtocolError, match="seal is broken"):
        list(readers[1].read())
