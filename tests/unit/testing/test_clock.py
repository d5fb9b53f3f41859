"""A manual clock moves only when it is told to, and whoever waits notices."""

from __future__ import annotations

import threading

import pytest

from lockstitch.testing import clock as clock_module
from lockstitch.testing.clock import ManualClock


class Waiting:
    """A thread that waits on the clock for an event."""

    def __init__(self, clock: ManualClock, timeout_seconds: float | None) -> None:
        self.event = threading.Event()
        self.outcomes: list[bool] = []
        self._thread = threading.Thread(
            target=lambda: self.outcomes.append(clock.wait(self.event, timeout_seconds))
        )
        self._thread.start()

    def outcome(self) -> bool:
        self._thread.join()
        return self.outcomes[0]


def test_time_stands_still_until_it_is_advanced():
    clock = ManualClock(start=100)
    assert [clock.now(), clock.now()] == [100, 100]
    clock.advance(2.5)
    assert clock.now() == 102.5


def test_a_wait_ends_when_its_time_is_over():
    clock = ManualClock()
    waiting = Waiting(clock, 30)
    clock.wait_until_waiting()
    clock.advance(29)
    assert not waiting.outcomes
    clock.advance(1)
    assert waiting.outcome() is False
    assert not waiting.event.is_set()


def test_advance_returns_when_all_whose_time_is_over_have_noticed():
    clock = ManualClock()
    early = [Waiting(clock, seconds) for seconds in (1, 2, 3)]
    late = Waiting(clock, 4)
    clock.wait_until_waiting(4)
    clock.advance(3)
    clock.wait_until_waiting(1)
    assert repr(clock) == "<ManualClock at 3.0 s · 1 waiting>"
    clock.advance(1)
    assert [each.outcome() for each in (*early, late)] == [False] * 4


@pytest.mark.parametrize("timeout_seconds", [None, 30])
def test_a_wait_ends_when_the_event_is_set(timeout_seconds):
    clock = ManualClock()
    waiting = Waiting(clock, timeout_seconds)
    waiting.event.set()
    assert waiting.outcome() is True


def test_no_time_at_all_only_looks():
    clock = ManualClock()
    event = threading.Event()
    assert clock.wait(event, 0) is False
    event.set()
    assert clock.wait(event, 0) is True


def test_a_time_that_is_past_is_not_waited_for():
    clock = ManualClock(start=10)
    assert clock.wait_until(threading.Event(), 10) is False
    assert clock.wait_until(threading.Event(), 3) is False


def test_time_does_not_go_back():
    with pytest.raises(ValueError, match="does not go back"):
        ManualClock().advance(-1)


def test_waiting_for_a_wait_that_never_comes_fails(monkeypatch):
    monkeypatch.setattr(clock_module, "_PATIENCE_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match="nothing happened"):
        ManualClock().wait_until_waiting()
