"""Rank 0 listens to the ranks of its session, and to nobody else who finds its port."""

from __future__ import annotations

import errno
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.collectives.c10d.hub import Hub
from lockstitch.collectives.c10d.messages import (
    ANYTHING,
    Ask,
    Hello,
    Leave,
    Missing,
    Submit,
    encode,
)
from lockstitch.collectives.c10d.star import Centre, Line, Password, Spoke
from lockstitch.testing.patience import Patience
from lockstitch.transport import TcpTransport
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.transport import Connection

SECRET = Secret(bytes(range(32)))
PASSWORD = Password("word", SECRET)


class Room:
    def __init__(self) -> None:
        self.transport = TcpTransport()
        listener = self.transport.listen()
        self.address = listener.address
        self.centre = Centre(Hub(2, 1 << 20), self.transport, listener, lambda m: None, PASSWORD)

    def connect(self) -> Connection:
        return TcpTransport().connect(self.address, 60.0)

    @property
    def ranks(self) -> set[int]:
        return set(self.centre._lines)

    def wait_for(self, ranks: set[int]) -> None:
        pause, patience = threading.Event(), Patience(60.0)
        while self.ranks != ranks:
            assert not patience.is_over()
            pause.wait(0.001)


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.centre.close()


def is_closed(connection: Connection) -> bool:
    counts: list[int] = []
    try:
        connection.receive_into(memoryview(bytearray(64)), counts, 60.0)
    except ConnectionError:
        return True
    return counts == [0]


def join(room: Room) -> Any:
    spoke = Spoke(1, Line(room.connect()), lambda message: None, PASSWORD)
    room.wait_for({1})
    return spoke


def test_password_is_made_of_the_secret_where_there_is_one() -> None:
    assert Password("word", None).of(1) == "word"
    assert PASSWORD.of(1) != PASSWORD.of(2)
    assert PASSWORD.of(1) != Password("another session", SECRET).of(1)
    assert PASSWORD.of(1) != Password("word", Secret.make()).of(1)


def test_strangers_are_not_heard(room: Room) -> None:
    strangers = [room.connect() for _ in range(5)]
    strangers[0].send([encode(Hello(1, "word"))])
    strangers[1].send([encode(Submit(1)), encode(Leave())])
    strangers[2].send([b"\xff" * 100])
    strangers[3].send([encode(Hello([1], {"word": 1}))])
    strangers[4].send([encode(Hello(1, "wörd"))])
    assert is_closed(strangers[2])
    spoke = join(room)
    assert room.ranks == {1}
    for stranger in strangers:
        stranger.close()
    spoke.close()


def test_strangers_are_few_and_push_each_other_out(room: Room) -> None:
    strangers = [room.connect() for _ in range(140)]
    assert is_closed(strangers[0])
    spoke = join(room)
    for stranger in strangers:
        stranger.close()
    spoke.close()


class Tampered:
    """A connection on which somebody changes what is sent."""

    def __init__(self, connection: Connection, change: Callable[[bytes], bytes]) -> None:
        self.connection = connection
        self.change = change

    def send(self, buffers: list[bytes]) -> None:
        self.connection.send([self.change(b"".join(buffers))])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:5] + bytes([content[5] ^ 1]) + content[6:],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content + content,
        lambda content: b"",
    ],
    ids=["changed", "with another seal", "said twice", "left out"],
)
def test_what_somebody_on_the_way_has_changed_is_not_heard(room: Room, change: Any) -> None:
    line = Line(room.connect())
    spoke = Spoke(1, line, lambda message: None, PASSWORD)
    room.wait_for({1})
    line.connection = Tampered(line.connection, change)  # type: ignore[assignment]
    spoke.tell(Ask(ANYTHING))
    line.connection.change = lambda content: content  # type: ignore[attr-defined]
    spoke.tell(Ask(ANYTHING))  # out of step, where the last one did not arrive
    room.wait_for(set())
    spoke.close()


def test_both_directions_are_sealed_with_keys_of_their_own(room: Room) -> None:
    heard: SimpleQueue[Any] = SimpleQueue()
    line = Line(room.connect())
    spoke = Spoke(1, line, heard.put, PASSWORD)
    spoke.tell(Ask(ANYTHING))
    assert heard.get(timeout=60) == Missing(ANYTHING, ())
    by, to = PASSWORD.seals(1) or pytest.fail("there is a secret")
    assert by.next(b"") != to.next(b"")
    assert spoke.bytes_sent == len(encode(Ask(ANYTHING))) + 16
    spoke.close()


def test_without_a_secret_there_are_no_seals() -> None:
    assert Password("word", None).seals(1) is None


def test_callers_wait_while_no_more_files_can_be_opened(room, monkeypatch) -> None:
    tried = threading.Event()
    accept = room.centre._listener.accept

    def none_left() -> None:
        tried.set()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(room.centre._listener, "accept", none_left)
    caller = room.connect()
    assert tried.wait(60)
    monkeypatch.setattr(room.centre._listener, "accept", accept)
    caller.send([encode(Hello(1, PASSWORD.of(1)))])
    room.wait_for({1})
    caller.close()
