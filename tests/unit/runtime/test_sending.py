"""Frames stay whole and in order, also those whose senders had no time to wait for them."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.runtime import sending
from lockstitch.runtime.sending import Sending
from lockstitch.transport.base import SendTimeoutError
from lockstitch.transport.stream import StreamConnection
from tests.unit.runtime.stage import Background, wait_until
from tests.unit.transport.streams import receive_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BIG = 8 << 20  # more than a socket takes at once


class Line:
    """A connection, whose tasks run when the test wants."""

    def __init__(self) -> None:
        left, right = socket.socketpair()
        self.near, self.far = StreamConnection(left, "far"), StreamConnection(right, "near")
        self.tasks: list[Callable[[], None]] = []
        self.lost: list[BaseException] = []
        self.sending = Sending(self.near, self.tasks.append, self.lost.append, most_bytes=1000)

    def fill(self) -> None:
        """Leaves the rest of a frame behind."""
        with pytest.raises(SendTimeoutError):
            self.sending.send([bytes(BIG)], lambda: 0.0)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.near.close()
    line.far.close()


def test_what_is_left_behind_leaves_in_order_by_another_thread(line: Line) -> None:
    line.fill()
    for frame in (b"one", b"two"):
        with pytest.raises(SendTimeoutError):
            line.sending.send([frame[:1], frame[1:]], lambda: 0.0)
    assert line.sending.is_behind
    (clear_up,) = line.tasks
    clearing = Background(clear_up)
    assert receive_all(line.far, BIG + 6) == bytes(BIG) + b"onetwo"
    clearing.result()
    assert not line.sending.is_behind
    line.sending.wait_until_clear(60)
    line.sending.send([b"three"], lambda: 60.0)
    assert receive_all(line.far, 5) == b"three"


def test_whoever_sends_next_sends_what_is_left_behind_first(line: Line) -> None:
    line.fill()
    with pytest.raises(SendTimeoutError):
        line.sending.send([b"one"], lambda: 0.0)
    sender = Background(line.sending.send, [b"two"])
    assert receive_all(line.far, BIG + 6) == bytes(BIG) + b"onetwo"
    sender.result()
    line.tasks.pop()()
    assert not line.sending.is_behind


def test_nobody_waits_for_another_sender_beyond_its_own_time(line: Line) -> None:
    patient = Background(line.sending.send, [bytes(BIG)])
    wait_until(line.sending._lock.locked)
    with pytest.raises(SendTimeoutError):
        line.sending.send([b"hasty"], lambda: 0.0)
    clearing = Background(line.tasks.pop())
    assert receive_all(line.far, BIG + 5) == bytes(BIG) + b"hasty"
    patient.result()
    clearing.result()


def test_what_stands_still_may_be_added_to_while_there_is_room(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.fill()
    assert not line.sending.may_add()  # it may take something in at any moment
    monkeypatch.setattr(sending, "STILL_SECONDS", 0.0)
    assert line.sending.may_add()
    with pytest.raises(SendTimeoutError):
        line.sending.send([bytes(1000)], lambda: 0.0)
    assert not line.sending.may_add()
    clearing = Background(line.tasks.pop())
    receive_all(line.far, BIG + 1000)
    clearing.result()
    assert line.sending.may_add()


def test_a_peer_that_takes_something_in_does_not_stand_still(line: Line) -> None:
    sender = Background(line.sending.send, [bytes(BIG)])
    wait_until(line.sending._lock.locked)
    stillness = line.sending.stillness()
    wait_until(lambda: stillness.seconds() > 0)
    receive_all(line.far, BIG)
    sender.result()
    assert stillness.seconds() == 0


def test_a_connection_that_ends_with_something_left_behind_is_lost(line: Line) -> None:
    line.fill()
    clearing = Background(line.tasks.pop())
    line.far.close()
    clearing.result()
    assert [isinstance(error, ConnectionError) for error in line.lost] == [True]
    assert not line.sending.is_behind


def test_an_interrupted_sender_of_what_is_left_behind_closes_the_connection(line: Line) -> None:
    line.fill()
    with pytest.raises(SendTimeoutError):
        line.sending.send([b"one"], lambda: 0.0)

    def interrupt() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        line.sending.send([b"two"], interrupt)
    assert line.near.is_closed


def test_last_words_do_not_wait_behind_what_is_left(line: Line) -> None:
    line.fill()
    line.sending.say_at_last([b"bye"], 0.01)
    assert line.tasks
    clearing = Background(line.tasks.pop())
    assert receive_all(line.far, BIG) == bytes(BIG)
    clearing.result()
    done = threading.Event()
    line.sending.say_at_last([b"bye"], 60)
    done.set()
    assert receive_all(line.far, 3) == b"bye"
