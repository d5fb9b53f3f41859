"""When a spinner may spin, and when it stops. Time is a list of numbers."""

from __future__ import annotations

import os
import socket

import pytest

from lockstitch.transport.memory import MemoryNetwork
from lockstitch.transport.spin import _TURN, Spinner
from lockstitch.transport.stream import StreamConnection
from lockstitch.transport.unix import UnixTransport
from tests.unit.transport.streams import connected

MICROSECOND = 1e-6


class SteppingTime:
    """A clock that goes on by `step` seconds whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step
        self.readings = 0

    def __call__(self) -> float:
        self.now += self.step
        self.readings += 1
        return self.now


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    near, far = StreamConnection(left, "far"), StreamConnection(right, "near")
    yield near, far
    near.close()
    far.close()


def spin(spinner: Spinner, connection, counts: list[int] | None = None) -> bool:
    return spinner.receive(connection, memoryview(bytearray(10)), [] if counts is None else counts)


def fail_three_times(spinner: Spinner, connection) -> None:
    for _ in range(3):
        assert not spin(spinner, connection)


def test_what_is_there_is_received_at_once(pair):
    near, far = pair
    near.send([b"abc"])
    counts: list[int] = []
    assert spin(Spinner(), far, counts)
    assert counts == [3]


def test_what_comes_during_the_spin_is_received(pair):
    near, far = pair
    looks = []

    def yield_cpu() -> None:
        looks.append(None)
        if len(looks) == 5:
            near.send([b"abc"])

    counts: list[int] = []
    assert spin(Spinner(SteppingTime(MICROSECOND), yield_cpu), far, counts)
    assert counts == [3]


def test_it_stops_after_a_hundred_and_fifty_microseconds(pair):
    time = SteppingTime(MICROSECOND)
    looks: list[None] = []
    assert not spin(Spinner(time, lambda: looks.append(None)), pair[1])
    assert 145 <= len(looks) <= 151


def test_it_stops_when_one_look_takes_long(pair):
    looks: list[None] = []
    assert not spin(Spinner(SteppingTime(51 * MICROSECOND), lambda: looks.append(None)), pair[1])
    assert len(looks) == 1


def test_the_end_of_the_stream_counts_as_something(pair):
    near, far = pair
    near.close()
    counts: list[int] = []
    assert spin(Spinner(), far, counts)
    assert counts == [0]


def test_three_failures_cost_the_right_for_a_millisecond(pair):
    near, far = pair
    time = SteppingTime(MICROSECOND)
    spinner = Spinner(time)
    fail_three_times(spinner, far)
    near.send([b"x"])
    assert "paused" in repr(spinner)
    assert not spin(spinner, far)
    time.now += 1e-3
    assert spin(spinner, far)
    assert "ready" in repr(spinner)


def test_the_pause_doubles_with_each_failure_and_a_success_shortens_it_again(pair):
    near, far = pair
    time = SteppingTime(MICROSECOND)
    spinner = Spinner(time)
    fail_three_times(spinner, far)
    pauses = []
    for _ in range(9):
        pauses.append(spinner._paused_until - time.now)
        time.now = spinner._paused_until
        assert not spin(spinner, far)
    assert [round(pause * 1e3) for pause in pauses] == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    time.now = spinner._paused_until
    near.send([b"x"])
    assert spin(spinner, far)
    fail_three_times(spinner, far)
    assert round((spinner._paused_until - time.now) * 1e3) == 1


def test_only_one_spins_at_a_time(pair):
    near, far = pair
    time = SteppingTime(MICROSECOND)
    outcomes: list[bool] = []

    def let_another_try() -> None:
        if not outcomes:
            far.send([b"x"])
            outcomes.append(spin(Spinner(time), near))

    assert not spin(Spinner(time, let_another_try), far)
    assert outcomes == [False]
    assert spin(Spinner(time), near)


def test_a_turn_that_was_never_given_back_passes(pair):
    near, far = pair
    near.send([b"x"])
    time = SteppingTime(MICROSECOND)
    _TURN.taken_until = time.now + 150 * MICROSECOND  # as an interrupt may leave it
    assert not spin(Spinner(time), far)
    time.now += 150 * MICROSECOND
    assert spin(Spinner(time), far)


def test_a_lost_peer_raises_and_gives_the_turn_back():
    class Lost(StreamConnection):
        def receive_into(self, view, counts, timeout_seconds):
            raise ConnectionResetError

    left, right = socket.socketpair()
    lost = Lost(left, "far")
    with pytest.raises(ConnectionError):
        spin(Spinner(), lost)
    assert _TURN.taken_until == 0.0
    lost.close()
    right.close()


def test_nobody_spins_for_a_peer_in_the_same_process():
    unix = UnixTransport()
    for transport in (unix, MemoryNetwork().transport("w0")):
        with connected(transport) as (near, far):
            near.send([b"x"])
            assert not spin(Spinner(), far)
    unix.close()


@pytest.mark.skipif(not hasattr(os, "sched_yield"), reason="needs sched_yield")
def test_the_cpu_is_offered_to_others_by_default(pair):
    assert Spinner()._yield_cpu is os.sched_yield
