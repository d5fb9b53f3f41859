"""When a spinner may spin, and when it stops. Time is a list of numbers."""

from __future__ import annotations

import os
import socket

import pytest

from lockstitch.memory import ring
from lockstitch.transport.memory import MemoryNetwork
from lockstitch.transport.spin import _COURTESY, _TURN, DurationEstimate, Spinner
from lockstitch.transport.stream import StreamConnection
from lockstitch.transport.unix import UnixTransport
from tests.unit.transport.rings import RingPair
from tests.unit.transport.streams import connected, socket_pair

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
    with socket_pair() as ends:
        yield ends


@pytest.fixture(autouse=True)
def _nothing_else_to_do():
    _TURN.shares_until = 0.0
    _COURTESY.__init__()
    yield
    _TURN.shares_until = 0.0
    _COURTESY.__init__()


def spin(spinner: Spinner, connection, counts: list[int] | None = None) -> bool:
    return spinner.receive(connection, memoryview(bytearray(10)), [] if counts is None else counts)


def wait_in_vain(spinner: Spinner, connection, time: SteppingTime, seconds: float) -> None:
    """A wait that ends only `seconds` after the spin did."""
    assert not spin(spinner, connection)
    time.now += seconds
    spinner.note_arrival()


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
    assert spin(Spinner(now=SteppingTime(MICROSECOND), yield_cpu=yield_cpu), far, counts)
    assert counts == [3]


def test_at_first_it_stops_after_fifty_microseconds(pair):
    time = SteppingTime(MICROSECOND)
    assert not spin(Spinner(now=time, yield_cpu=lambda: None), pair[1])
    assert 45 <= time.now / MICROSECOND <= 55


def test_it_spins_longer_where_waits_were_a_little_longer(pair):
    time = SteppingTime(MICROSECOND)
    spinner = Spinner(now=time, yield_cpu=lambda: None)
    wait_in_vain(spinner, pair[1], time, 500 * MICROSECOND)
    usual = spinner._estimate.usual_seconds
    assert usual > 100 * MICROSECOND
    time.now += 1e-3  # by now the peer may be asleep
    began = time.now
    assert not spin(spinner, pair[1])
    assert time.now - began == pytest.approx(3 * usual + 50e-6, abs=5 * MICROSECOND)


def test_it_does_not_spin_where_waits_are_long_until_they_are_short_again(pair):
    near, far = pair
    time = SteppingTime(MICROSECOND)
    looks: list[None] = []
    spinner = Spinner(now=time, yield_cpu=lambda: looks.append(None))
    for _ in range(3):
        wait_in_vain(spinner, far, time, 1.0)
    looks.clear()
    near.send([b"x"])
    assert not spin(spinner, far)
    assert looks == []
    time.now += 20 * MICROSECOND
    spinner.note_arrival()
    assert spin(spinner, far)


def test_a_wait_without_spinning_is_measured_once(pair):
    spinner = Spinner(now=SteppingTime(MICROSECOND))
    spinner.note_arrival()
    assert spinner._estimate.usual_seconds == 0.0
    assert not spin(spinner, pair[1])
    spinner.note_arrival()
    usual = spinner._estimate.usual_seconds
    assert usual > 0.0
    spinner.note_arrival()
    assert spinner._estimate.usual_seconds == usual
    assert f"{usual * 1e6:.0f} µs" in repr(spinner)


def slow_look(spinner: Spinner, connection, time: SteppingTime) -> float:
    """One look that takes a millisecond; returns for how long spinning then pauses."""
    step, time.step = time.step, 1e-3
    assert not spin(spinner, connection)
    pause = spinner._paused_until - time.now
    time.step = step
    return pause


def test_a_slow_look_ends_it_and_costs_the_right_for_a_millisecond(pair):
    near, far = pair
    time = SteppingTime(MICROSECOND)
    looks: list[None] = []
    spinner = Spinner(now=time, yield_cpu=lambda: looks.append(None))
    assert slow_look(spinner, far, time) == pytest.approx(1e-3)
    assert len(looks) == 1
    near.send([b"x"])
    assert not spin(spinner, far)
    time.now += 1e-3
    assert spin(spinner, far)


class Shared:
    """A CPU that the peer wants too: it runs, and answers, whenever it is offered."""

    def __init__(self, pair, *, answers: bool = True) -> None:
        self.near, self.far = pair
        self.answers = answers
        self.time = SteppingTime(MICROSECOND)
        self.offers = 0
        self.spinner = Spinner(now=self.time, yield_cpu=self.offer)

    def offer(self) -> None:
        self.offers += 1
        self.time.now += 20 * MICROSECOND
        if self.answers:
            self.near.send([b"x"])

    def wait(self) -> bool:
        return spin(self.spinner, self.far)

    def wait_for_a_peer_that_runs_elsewhere(self) -> None:
        self.near.send([b"x"])
        assert self.wait()


def test_who_has_let_others_run_offers_the_cpu_from_the_start_for_a_while(pair):
    cpu = Shared(pair)
    cpu.wait_for_a_peer_that_runs_elsewhere()
    cpu.wait_for_a_peer_that_runs_elsewhere()
    looks = []
    for _ in range(2):
        before = cpu.time.readings
        assert cpu.wait()
        looks.append(cpu.time.readings - before)
    assert looks[0] - looks[1] > 15, "which are microseconds"
    cpu.time.now += 6e-3
    assert cpu.wait()
    assert cpu.offers == 3


def test_others_than_the_peer_may_be_who_wants_it(pair):
    cpu = Shared(pair, answers=False)
    cpu.wait_for_a_peer_that_runs_elsewhere()
    assert not cpu.wait()
    cpu.spinner.note_arrival()
    other = Spinner(now=cpu.time, yield_cpu=cpu.offer)
    offers, began = cpu.offers, cpu.time.now
    assert not spin(other, cpu.far)
    assert cpu.offers - offers >= (cpu.time.now - began) / (25 * MICROSECOND)
    _COURTESY.rests_until = cpu.time.now + 1e-3
    cpu.near.send([b"x"])
    assert not spin(other, cpu.far), "it blocks at once"
    cpu.time.now += 1e-3
    assert spin(other, cpu.far)


def test_a_look_that_takes_long_is_no_long_yield(pair):
    time = SteppingTime(MICROSECOND)
    looks: list[None] = []

    class SlowToLook(StreamConnection):
        def receive_into(self, view, counts, timeout_seconds):
            time.now += 20 * MICROSECOND
            raise BlockingIOError

    left, right = socket.socketpair()
    slow = SlowToLook(left, "far")
    assert not spin(Spinner(now=time, yield_cpu=lambda: looks.append(None)), slow)
    assert looks
    assert _COURTESY.offers_until == 0.0
    slow.close()
    right.close()


def test_the_pause_doubles_with_each_slow_look_and_successes_shorten_it_again(pair):
    near, far = pair
    time = SteppingTime(MICROSECOND)
    spinner = Spinner(now=time, yield_cpu=lambda: None)
    pauses = []
    for _ in range(9):
        pauses.append(slow_look(spinner, far, time))
        time.now = spinner._paused_until
    assert [round(pause * 1e3) for pause in pauses] == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    for _ in range(3):
        near.send([b"x"])
        assert spin(spinner, far)
    assert round(slow_look(spinner, far, time) * 1e3) == 8


def test_the_end_of_the_stream_counts_as_something(pair):
    near, far = pair
    near.close()
    counts: list[int] = []
    assert spin(Spinner(), far, counts)
    assert counts == [0]


def test_only_one_spins_at_a_time(pair):
    near, far = pair
    time = SteppingTime(MICROSECOND)
    outcomes: list[bool] = []

    def let_another_try() -> None:
        if not outcomes:
            far.send([b"x"])
            outcomes.append(spin(Spinner(now=time), near))

    assert not spin(Spinner(now=time, yield_cpu=let_another_try), far)
    assert outcomes == [False]
    assert spin(Spinner(now=time), near)


def test_a_turn_that_was_never_given_back_passes(pair):
    near, far = pair
    near.send([b"x"])
    time = SteppingTime(MICROSECOND)
    _TURN.taken_until = time.now + 50 * MICROSECOND  # as an interrupt may leave it
    assert not spin(Spinner(now=time), far)
    time.now += 50 * MICROSECOND
    assert spin(Spinner(now=time), far)


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


def test_the_cpu_is_kept_while_the_peer_is_awake_and_offered_later(pair):
    far = pair[1]
    time = SteppingTime(MICROSECOND)
    looks: list[float] = []
    spinner = Spinner(now=time, yield_cpu=lambda: looks.append(time.now))
    wait_in_vain(spinner, far, time, 300 * MICROSECOND)
    looks.clear()
    since = time.now
    assert not spin(spinner, far)
    assert looks
    assert min(looks) - since > 150 * MICROSECOND


def test_waits_of_one_kind_do_not_spoil_those_of_another(pair):
    near, far = pair
    time = SteppingTime(MICROSECOND)
    spinner, long_waits, short_waits = (
        Spinner(now=time, yield_cpu=lambda: None),
        DurationEstimate(),
        DurationEstimate(),
    )
    for _ in range(3):
        assert not spinner.receive(far, memoryview(bytearray(10)), [], long_waits)
        time.now += 1.0
        spinner.note_arrival()
    near.send([b"x"])
    assert not spinner.receive(far, memoryview(bytearray(10)), [], long_waits)
    assert spinner.receive(far, memoryview(bytearray(10)), [], short_waits)


def test_it_stops_when_something_else_is_to_be_read(pair):
    time = SteppingTime(MICROSECOND)
    questions: list[float] = []

    def is_wanted() -> bool:
        questions.append(time.now)
        return len(questions) == 2

    looks: list[None] = []
    spinner = Spinner(is_wanted, time, lambda: looks.append(None))
    assert not spin(spinner, pair[1])
    assert len(questions) == 2
    assert len(looks) < 30
    assert _TURN.shares_until > time.now


@pytest.mark.skipif(not hasattr(os, "sched_yield"), reason="needs sched_yield")
def test_the_cpu_is_offered_to_others_by_default(pair):
    assert Spinner()._yield_cpu is os.sched_yield


# ---------------------------------------------------------------- rings


@pytest.fixture
def rings():
    if not ring.IS_AVAILABLE:
        pytest.skip("needs ordered stores")
    pair = RingPair()
    pair.far.is_own_process = False
    yield pair
    pair.close()


class Happening:
    """A clock that goes on by a microsecond, and does something at a certain time."""

    def __init__(self, when: float, action) -> None:
        self.now, self.when, self.action = 0.0, when, action

    def __call__(self) -> float:
        self.now += MICROSECOND
        if self.action is not None and self.now > self.when:
            action, self.action = self.action, None
            action()
        return self.now


def test_a_spinner_finds_what_comes_into_the_ring(rings):
    in_stream = []

    def send() -> None:
        assert rings.looks
        rings.near.send([b"abc"])
        in_stream.append(rings.is_called)

    counts: list[int] = []
    assert spin(Spinner(now=Happening(20 * MICROSECOND, send)), rings.far, counts)
    assert counts == [3]
    assert in_stream == [False]
    assert not rings.looks


def test_a_spinner_whose_peer_is_awake_looks_into_the_ring_alone(rings):
    time = Happening(1.0, None)
    spinner = Spinner(now=time)
    for _ in range(2):
        time.now += 10e-3  # for so long nobody else has received anything here
        rings.near.send([b"x"])
        assert spin(spinner, rings.far)
    looks = 0
    receive = rings.far._recv_into

    def counted(*arguments):
        nonlocal looks
        looks += 1
        return receive(*arguments)

    rings.far._recv_into = counted
    seen: list[int] = []
    time.when, time.action = time.now + 18 * MICROSECOND, lambda: seen.append(looks)
    assert not spin(spinner, rings.far)
    assert seen <= [1], "and at the stream now and then"
    assert looks > 5, "but more often where it offers the CPU"


def test_where_others_have_received_something_of_late_the_gil_is_not_kept(rings):
    time = Happening(1.0, None)
    spinner, other = Spinner(now=time), Spinner(now=time)
    for each in (spinner, spinner, other, spinner):
        time.now += 3e-3
        rings.near.send([b"x"])
        assert spin(each, rings.far)
    rings.far.ring.watch = None  # whoever calls it, fails
    assert not spin(spinner, rings.far)


def test_what_comes_into_the_ring_at_the_very_end_is_not_left_there(rings):
    spinner = Spinner(now=SteppingTime(MICROSECOND))
    spinner._spin = lambda *_: rings.near.send([b"abc"])  # and returns nothing
    counts: list[int] = []
    assert spin(spinner, rings.far, counts)
    assert counts == [3]
    assert not rings.looks


def test_a_peer_that_takes_back_what_it_has_put_in_does_no_harm(rings):
    spinner = Spinner(now=SteppingTime(MICROSECOND))
    reader = rings.far.ring
    look_away = reader.look_away

    def see_what_is_taken_back() -> bool:
        reader.words[ring.TAIL] = reader.head + 1
        try:
            return look_away()
        finally:
            reader.words[ring.TAIL] = reader.head

    reader.look_away = see_what_is_taken_back
    assert not spin(spinner, rings.far)


def test_who_looks_on_is_told_what_comes_meanwhile_by_the_ring(rings):
    spinner = Spinner(now=SteppingTime(MICROSECOND), looks_on=True)
    rings.near.send([b"x"])
    assert spin(spinner, rings.far)
    assert rings.looks
    rings.near.send([b"more"])
    assert rings.far.has_left_over()
    assert not rings.looks
    assert spin(spinner, rings.far)
    assert not spin(spinner, rings.far)
    assert not rings.looks


def test_an_interrupted_spinner_looks_no_more(rings):
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spin(Spinner(now=Happening(20 * MICROSECOND, interrupt)), rings.far)
    assert not rings.looks
