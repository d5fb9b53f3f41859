"""Rank 0 listens to the ranks of its session, and to nobody else who finds its port."""

from __future__ import annotations

import errno
import platform
import re
import threading
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch import __version__
from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives.c10d.coordinator import Coordinator
from lockstitch.collectives.c10d.coordinator_link import (
    CoordinatorClient,
    CoordinatorServer,
    connect_to_coordinator,
)
from lockstitch.collectives.c10d.link_options import LinkOptions
from lockstitch.collectives.c10d.messages import (
    ANYTHING,
    Ask,
    Fail,
    Leave,
    Lost,
    Missing,
    Submit,
    Welcome,
    encode,
)
from lockstitch.collectives.rank_names import RankNames
from lockstitch.errors import CollectiveError, RankLostError
from lockstitch.link import greetings
from lockstitch.link.line import Line
from lockstitch.testing.clock import ManualClock
from lockstitch.testing.time_limits import ActiveTimeLimit
from lockstitch.transport import TcpTransport
from lockstitch.transport.tcp import TcpConnection
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.transport import Connection

SECRET = Secret(bytes(range(32)))
TERMS = LinkOptions.of("word", SECRET, 60.0)


def wait_until(is_so: Callable[[], bool]) -> None:
    pause, time_limit = threading.Event(), ActiveTimeLimit(60.0)
    while not is_so():
        assert not time_limit.is_over()
        pause.wait(0.001)


class Room:
    def __init__(self, clock: Any = SYSTEM_CLOCK) -> None:
        self.transport = TcpTransport()
        listener = self.transport.listen()
        self.address = listener.address
        coordinator = Coordinator(2, 1 << 20)
        self.coordinator_rank = CoordinatorServer(
            coordinator, self.transport, listener, lambda m: None, TERMS, clock=clock
        )

    def connect(self) -> Connection:
        return TcpTransport().connect(self.address, 60.0)

    def line(self, link_options: LinkOptions = TERMS) -> Any:
        return connect_to_coordinator(TcpTransport(), self.address, 1, link_options)

    @property
    def ranks(self) -> set[int]:
        return set(self.coordinator_rank._lines)

    def wait_for(self, ranks: set[int]) -> None:
        wait_until(lambda: self.ranks == ranks)


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.coordinator_rank.close()


def is_closed(connection: Connection) -> bool:
    counts: list[int] = []
    try:
        connection.receive_into(memoryview(bytearray(64)), counts, 60.0)
    except ConnectionError:
        return True
    return counts == [0]


def join(room: Room) -> Any:
    client = CoordinatorClient(1, room.line(), lambda message: None, TERMS)
    room.wait_for({1})
    return client


def test_strangers_are_not_heard(room: Room) -> None:
    strangers = [room.connect() for _ in range(3)]
    strangers[0].send([encode(Submit(1)), encode(Leave())])
    strangers[1].send([b"\xff" * 100])
    assert is_closed(strangers[0])
    assert is_closed(strangers[1])
    client = join(room)
    assert room.ranks == {1}
    for stranger in strangers:
        stranger.close()
    client.close()


@pytest.mark.parametrize(
    "link_options",
    [
        LinkOptions.of("another word", SECRET, 60.0),
        LinkOptions.of("word", Secret(bytes(32)), 60.0),
        LinkOptions.of("word", None, 60.0),
        LinkOptions(SECRET),
    ],
    ids=["another session", "another secret", "no secret", "the job's own"],
)
def test_who_has_not_both_word_and_secret_is_told_so(room: Room, link_options: LinkOptions) -> None:
    with pytest.raises(CollectiveError, match="rank 1 was not let in by rank 0 at .* proof is"):
        room.line(link_options)
    assert room.ranks == set()
    join(room).close()


def test_without_a_secret_whoever_knows_the_word_belongs_here() -> None:
    link_options = LinkOptions.of("word", None, 60.0)
    assert link_options == LinkOptions.of("word", None, 60.0)
    assert (link_options.is_authenticated, TERMS.is_authenticated) == (False, True)
    assert link_options.secret != LinkOptions.of("guess", None, 60.0).secret


def test_rank_that_is_here_already_is_not_let_in_again(room: Room) -> None:
    client = join(room)
    with pytest.raises(CollectiveError, match="rank 1 is here already"):
        room.line()
    client.close()


def test_rank_of_another_version_is_told_both(room: Room, monkeypatch: Any) -> None:
    monkeypatch.setattr(greetings.Hello.__init__, "__defaults__", ("9.1.0",))
    ours = re.escape(f"{__version__} (on host {platform.node()})")
    words = f"rank 1 was not let in by rank 0 .*{ours}, its caller 9.1.0"
    with pytest.raises(CollectiveError, match=words):
        room.line()


def test_strangers_are_few_and_push_each_other_out(room: Room) -> None:
    strangers = [room.connect() for _ in range(140)]
    assert is_closed(strangers[0])
    client = join(room)
    for stranger in strangers:
        stranger.close()
    client.close()


def test_strangers_that_say_nothing_go_after_a_while() -> None:
    clock = ManualClock()
    room = Room(clock)
    stranger = room.connect()
    wait_until(lambda: len(room.coordinator_rank._entrance._door) == 1)
    clock.advance(30.5)
    room.coordinator_rank.tell(Ask(ANYTHING))  # wakes it
    assert is_closed(stranger)
    assert room.coordinator_rank._entrance._door.refused() == {"too slow": 1}
    stranger.close()
    room.coordinator_rank.close()


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
    line = room.line()
    client = CoordinatorClient(1, line, lambda message: None, TERMS)
    room.wait_for({1})
    line.stream = Tampered(line.stream, change)
    client.tell(Ask(ANYTHING))
    line.stream.change = lambda content: content
    client.tell(Ask(ANYTHING))  # out of step, where the last one did not arrive
    room.wait_for(set())
    client.close()


def test_what_is_sent_is_counted_with_its_seal(room: Room) -> None:
    heard: SimpleQueue[Any] = SimpleQueue()
    client = CoordinatorClient(1, room.line(), heard.put, TERMS)
    client.tell(Ask(ANYTHING))
    assert heard.get(timeout=60) == Missing(ANYTHING, ())
    assert client.bytes_sent == 4 + len(encode(Ask(ANYTHING))) + 16
    client.close()


def test_callers_wait_while_no_more_files_can_be_opened(room, monkeypatch) -> None:
    tried = threading.Event()
    accept = room.coordinator_rank._entrance._listener.accept

    def none_left() -> None:
        tried.set()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(room.coordinator_rank._entrance._listener, "accept", none_left)
    caller = room.connect()
    assert tried.wait(60)
    monkeypatch.setattr(room.coordinator_rank._entrance._listener, "accept", accept)
    join(room).close()
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
        self.coordinator_rank = CoordinatorServer(
            Coordinator(3, 1 << 20),
            self.transport,
            listener,
            self.heard[0].put,
            TERMS,
            expected=(1, 2),
            clock=clock,
        )
        self.clients: list[CoordinatorClient] = []

    def come(self, rank: int) -> None:
        line = connect_to_coordinator(TcpTransport(), self.address, rank, TERMS)
        self.clients.append(CoordinatorClient(rank, line, self.heard[rank].put, TERMS))

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.coordinator_rank.close()


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
    wait_until(lambda: set(trio.coordinator_rank._lines) == {1})
    clock.advance(61.0)
    trio.coordinator_rank.tell(Ask(ANYTHING))  # wakes it
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
        patched.setattr(trio.clients[0]._line.stream, "send", reset)
        trio.clients[0].tell(Submit(1))
    assert "Connection reset" in heard_of_losses(trio.heard[1]).why
    assert heard_of_losses(trio.heard[0]).rank == heard_of_losses(trio.heard[2]).rank == 1
    trio.close()


def test_what_a_rank_has_said_before_it_went_counts_where_it_is_told_something_then() -> None:
    trio = Trio()
    trio.come(1)
    trio.come(2)
    trio.heard[2].get(timeout=60)
    line = trio.clients[0]._line

    def too_late(_buffers: object) -> None:
        line.send(encode(Fail("no room")))
        line.close()
        reset()

    trio.coordinator_rank._lines[1].stream.send = too_late  # type: ignore[method-assign]
    trio.clients[0].tell(Ask(ANYTHING))
    assert heard_of_losses(trio.heard[2]) == Lost(1, "could not go on: no room")
    trio.close()


def test_greeting_that_fails_is_an_error_that_names_rank_0(room: Room, monkeypatch: Any) -> None:
    monkeypatch.setattr(TcpConnection, "send", reset)
    with pytest.raises(CollectiveError, match="rank 0 could not be greeted: .* reset"):
        room.line()


def test_who_waits_for_rank_0_hears_that_another_has_failed() -> None:
    transport = TcpTransport()
    listener = transport.listen()  # rank 0 does not answer

    def look() -> None:
        raise RankLostError("rank 2 gave up")

    with pytest.raises(RankLostError, match="^rank 2 gave up$"):
        connect_to_coordinator(transport, listener.address, 1, TERMS, look)
    listener.close()


def test_wait_that_ends_without_anything_is_not_the_end(room: Room) -> None:
    heard: SimpleQueue[Any] = SimpleQueue()
    line = room.line()
    receive = line.stream.receive_into
    left = [3]

    def nothing_yet(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        receive(*arguments)

    line.stream.receive_into = nothing_yet
    client = CoordinatorClient(1, line, heard.put, TERMS)
    client.tell(Ask(ANYTHING))
    assert heard.get(timeout=60) == Missing(ANYTHING, ())
    client.close()


# ---------------------------------------------------------------- silence

NAMES = RankNames()
NAMES.learn_places(("host alpha", "host beta").__getitem__, "host alpha")
WATCHED = replace(TERMS, heartbeat=10.0, names=NAMES)


def test_rank_that_falls_silent_is_lost_to_all_within_the_bound() -> None:
    clock = ManualClock()
    heard: SimpleQueue[Any] = SimpleQueue()
    transport = TcpTransport()
    listener = transport.listen()
    server = CoordinatorServer(
        Coordinator(2, 1 << 20), transport, listener, heard.put, WATCHED, clock=clock
    )
    line = connect_to_coordinator(TcpTransport(), listener.address, 1, WATCHED)
    wait_until(lambda: set(server._lines) == {1})
    for _ in range(5):
        assert not any(isinstance(message, Lost) for message in drained(heard))
        clock.advance(2.0)
        due = server._pulse._due
        server.tell(Ask(ANYTHING))  # wakes it
        wait_until(lambda due=due: server._pulse._due > due or not server._lines)
    why = "died, or its connection broke (it has been silent for 10 s, on host beta)"
    assert heard_of_losses(heard) == Lost(1, why)
    line.close()
    server.close()


def drained(heard: SimpleQueue[Any]) -> list[Any]:
    return [heard.get() for _ in range(heard.qsize())]


class SilentStream:
    """A connection on which nothing comes: each wait ends when its time is over."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent: list[bytes] = []

    def send(self, buffers: list[bytes]) -> None:
        self.sent.append(b"".join(buffers))

    def receive_into(self, _view: Any, _counts: list[int], timeout_seconds: float | None) -> None:
        assert timeout_seconds is not None, "it would wait for ever"
        self.clock.advance(timeout_seconds)
        raise BlockingIOError

    def signs_of_life(self) -> tuple[int, ...]:
        return ()

    def bound_silence(self, seconds: float) -> None:
        assert seconds == 10.0

    def close(self) -> None: ...


def test_rank_0_that_falls_silent_is_lost_to_the_others_within_the_bound() -> None:
    clock = ManualClock()
    began = clock.now()
    stream = SilentStream(clock)
    heard: SimpleQueue[Any] = SimpleQueue()
    line: Any = Line(stream, None, 1 << 10)
    client = CoordinatorClient(1, line, heard.put, WATCHED, clock)
    why = "died, or its connection broke (it has been silent for 10 s, on host alpha)"
    assert heard_of_losses(heard) == Lost(0, why)
    assert clock.now() - began <= 10.0
    assert stream.sent == [bytes(4)] * 4  # pings
    client.close()
