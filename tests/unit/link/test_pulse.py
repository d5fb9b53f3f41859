"""Who says nothing is lost within the bound, and nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.link.pulse import Pulse, SilenceError, heartbeat_seconds
from lockstitch.testing import ManualClock

BOUND = 10.0


class FakeLine:
    def __init__(self) -> None:
        self.heard = 0
        self.pings = 0
        self.ticks = 0
        self.bound = 0.0
        self.is_gone = False

    def ping(self) -> None:
        if self.is_gone:
            raise BrokenPipeError("gone")
        self.pings += 1

    def signs_of_life(self) -> tuple[int, ...]:
        return (self.ticks,)

    def bound_silence(self, seconds: float) -> None:
        self.bound = seconds


def watched(*lines: FakeLine, bound: float = BOUND) -> tuple[ManualClock, Pulse]:
    clock = ManualClock()
    pulse = Pulse(bound, clock)
    for line in lines:
        pulse.add(line)
    return clock, pulse


def pass_parts(clock: ManualClock, pulse: Pulse, parts: int) -> list[str]:
    lost = []
    for _ in range(parts):
        clock.advance(pulse.seconds_to_next() or 0.0)
        lost += [str(why) for _, why in pulse.pass_time()]
    return lost


def test_the_silent_one_is_lost_within_the_bound_and_the_other_pinged_on() -> None:
    silent, alive = FakeLine(), FakeLine()
    clock, pulse = watched(silent, alive)
    began = clock.now()
    lost: list[object] = []
    while not lost:
        clock.advance(pulse.seconds_to_next() or 0.0)
        alive.heard += 1
        lost = [line for line, why in pulse.pass_time() if isinstance(why, SilenceError)]
    assert lost == [silent]
    assert 0.8 * BOUND <= clock.now() - began <= BOUND
    assert (silent.pings, alive.pings) == (4, 5)
    assert (silent.bound, alive.bound) == (BOUND, BOUND)


def test_a_process_of_this_host_that_computes_is_no_silent_one() -> None:
    busy = FakeLine()
    clock, pulse = watched(busy)
    for _ in range(20):
        busy.ticks += 1
        assert pass_parts(clock, pulse, 1) == []
    assert pass_parts(clock, pulse, 5) == ["it has been silent for 10 s"]


def test_own_silence_is_not_that_of_others() -> None:
    line = FakeLine()
    clock, pulse = watched(line)
    assert pass_parts(clock, pulse, 4) == []
    clock.advance(3600.0)  # this process was stopped
    assert pulse.pass_time() == []
    assert pass_parts(clock, pulse, 3) == []
    assert pass_parts(clock, pulse, 1) == ["it has been silent for 10 s"]


def test_one_that_cannot_be_sent_to_is_lost_at_once() -> None:
    line = FakeLine()
    clock, pulse = watched(line)
    line.is_gone = True
    assert pass_parts(clock, pulse, 1) == ["gone"]
    assert pulse.seconds_to_next() is None


def test_nobody_is_watched_without_a_bound_and_nobody_who_has_left() -> None:
    line = FakeLine()
    clock, pulse = watched(line, bound=0.0)
    clock.advance(3600.0)
    assert (pulse.pass_time(), pulse.seconds_to_next(), line.bound) == ([], None, 0.0)
    clock, pulse = watched(line)
    pulse.discard(line)
    pulse.discard(line)
    assert pulse.seconds_to_next() is None
    clock.advance(3600.0)
    pulse.add(line)  # its time begins now
    assert pulse.pass_time() == []


@given(st.lists(st.floats(0.0, BOUND), max_size=30), st.floats(0.1, 2.0))
def test_whoever_speaks_often_enough_is_never_lost(pauses: list[float], jitter: float) -> None:
    """Whatever the moments at which it is looked at, within a part of the bound."""
    line = FakeLine()
    clock, pulse = watched(line)
    spoke = clock.now()
    for pause in pauses:
        until = clock.now() + pause
        while clock.now() < until:
            clock.advance(min(jitter, until - clock.now() + 1e-6))
            for _, why in pulse.pass_time():
                assert clock.now() - spoke >= 0.6 * BOUND, why
                return
        line.heard += 1
        spoke = clock.now()


@pytest.mark.parametrize(
    ("said", "text", "seconds"),
    [(None, None, 10.0), (None, "2.5", 2.5), (3.0, "2.5", 3.0), (0, "2.5", 0.0), (None, "0", 0.0)],
)
def test_the_bound_is_what_the_program_says_or_the_environment(
    said: float | None, text: str | None, seconds: float
) -> None:
    environment = {} if text is None else {"LOCKSTITCH_HEARTBEAT_TIMEOUT": text}
    assert heartbeat_seconds(said, environment) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "inf", "nan"])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"LOCKSTITCH_HEARTBEAT_TIMEOUT.*not '{text}'"):
        heartbeat_seconds(None, {"LOCKSTITCH_HEARTBEAT_TIMEOUT": text})
