"""Rank 0 listens to the ranks of its session, and to nobody else who finds its port."""

from __future__ import annotations

import errno
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives.c10d.hub import Hub
from lockstitch.collectives.c10d.line import Line, Password
from lockstitch.collectives.c10d.messages import (
    ANYTHING,
    Ask,
    Hello,
    Leave,
    Lost,
    Missing,
    Submit,
    Welcome,
    encode,
)
from lockstitch.collectives.c10d.star import Centre, Spoke
from lockstitch.errors import CollectiveError
from lockstitch.testing.clock import ManualClock
from lockstitch.testing.patience import Patience
from lockstitch.transport import TcpTransport
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.transport import Connection

SECRET = Secret(bytes(range(32)))
PASSWORD = Password("word", SECRET)


def wait_until(is_so: Callable[[], bool]) -> None:
    pause, patience = threading.Event(), Patience(60.0)
    while not is_so():
        assert not patience.is_over()
        pause.wait(0.001)


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
        wait_until(lambda: self.ranks == ranks)


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


def heard_of_losses(heard: SimpleQueue[Any]) -> Lost:
    while True:
        message = heard.get(timeout=60)
        if isinstance(message, Lost):
            return message


class Trio:
    """Rank 0 and two others, each with what it hears."""

    def __init__(self, clock: Any = SYSTEM_CLOCK) -> None:
        self.transport = TcpTransport()
        listener = self.transport.listen()
        self.address = listener.address
        self.heard: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(3)]
        self.centre = Centre(
            Hub(3, 1 << 20),
            self.transport,
            listener,
            self.heard[0].put,
            PASSWORD,
            expected=(1, 2),
            clock=clock,
        )
        self.spokes: list[Spoke] = []

    def come(self, rank: int) -> None:
        line = Line(TcpTransport().connect(self.address, 60.0))
        self.spokes.append(Spoke(rank, line, self.heard[rank].put, PASSWORD))

    def close(self) -> None:
        for spoke in self.spokes:
            spoke.close()
        self.centre.close()


def test_all_are_welcomed_when_all_have_come() -> None:
    trio = Trio()
    trio.come(1)
    assert trio.heard[0].empty()
    trio.come(2)
    assert [heard.get(timeout=60) for heard in trio.heard] == [Welcome()] * 3
    trio.close()


def test_rank_that_does_not_come_is_told_to_all_others_and_refused_later() -> None:
    clock = ManualClock()
    trio = Trio(clock)
    trio.come(1)
    wait_until(lambda: set(trio.centre._lines) == {1})
    clock.advance(61.0)
    trio.centre.tell(Ask(ANYTHING))  # wakes it
    for rank in (0, 1):
        lost = heard_of_losses(trio.heard[rank])
        assert (lost.rank, lost.why) == (2, "did not come to rank 0 within 60 s")
    trio.come(2)
    assert heard_of_losses(trio.heard[2]) == Lost(2, "came too late")
    trio.close()


def reset(*_arguments: object, **_options: object) -> None:
    raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def test_send_that_fails_once_is_the_end_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    trio = Trio()
    trio.come(1)
    trio.come(2)
    trio.heard[2].get(timeout=60)
    with monkeypatch.context() as patched:
        patched.setattr(trio.spokes[0]._line.connection, "send", reset)
        trio.spokes[0].tell(Submit(1))
    assert "Connection reset" in heard_of_losses(trio.heard[1]).why
    assert heard_of_losses(trio.heard[0]).rank == heard_of_losses(trio.heard[2]).rank == 1
    trio.close()


def test_greeting_that_fails_is_an_error_that_names_rank_0(room: Room) -> None:
    line = Line(room.connect())
    line.connection.send = reset  # type: ignore[method-assign,assignment]
    with pytest.raises(CollectiveError, match="rank 0 could not be greeted: .* reset"):
        Spoke(1, line, lambda message: None, PASSWORD)


def test_wait_that_ends_without_anything_is_not_the_end(room: Room) -> None:
    heard: SimpleQueue[Any] = SimpleQueue()
    line = Line(room.connect())
    receive = line.connection.receive_into
    left = [3]

    def nothing_yet(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        receive(*arguments)

    line.connection.receive_into = nothing_yet  # type: ignore[method-assign]
    spoke = Spoke(1, line, heard.put, PASSWORD)
    spoke.tell(Ask(ANYTHING))
    assert heard.get(timeout=60) == Missing(ANYTHING, ())
    spoke.close()
