"""The system's clock goes forward and ends its waits."""

from __future__ import annotations

import threading

from lockstitch.clock import SYSTEM_CLOCK, earliest, seconds_until
from lockstitch.testing import ManualClock


def test_now_does_not_go_back() -> None:
    times = [SYSTEM_CLOCK.now() for _ in range(100)]
    assert times == sorted(times)


def test_wait_says_whether_it_was_set() -> None:
    event = threading.Event()
    before = SYSTEM_CLOCK.now()
    assert SYSTEM_CLOCK.wait(event, 0.01) is False
    assert SYSTEM_CLOCK.now() - before >= 0.01
    event.set()
    assert SYSTEM_CLOCK.wait(event, None) is True


def test_wait_until_a_time_ends_then_and_at_once_when_it_is_past() -> None:
    event = threading.Event()
    deadline = SYSTEM_CLOCK.now() + 0.01
    assert SYSTEM_CLOCK.wait_until(event, deadline) is False
    assert SYSTEM_CLOCK.now() >= deadline
    assert SYSTEM_CLOCK.wait_until(event, deadline - 60) is False
    event.set()
    assert SYSTEM_CLOCK.wait_until(event, None) is True


def test_the_earliest_of_moments_of_which_some_never_come() -> None:
    assert earliest(None, 3.0, 2.0) == 2.0
    assert earliest(None, None) is None


def test_how_long_it_is_until_a_moment() -> None:
    clock = ManualClock()
    assert seconds_until(clock.now() + 2.0, clock) == 2.0
    assert seconds_until(clock.now() - 2.0, clock) == 0.0
    assert seconds_until(None, clock) is None
