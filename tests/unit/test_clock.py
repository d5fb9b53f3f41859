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
