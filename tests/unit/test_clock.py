"""The system's clock goes forward and ends its waits."""

from __future__ import annotations

import threading

from lockstitch.clock import SYSTEM_CLOCK


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
