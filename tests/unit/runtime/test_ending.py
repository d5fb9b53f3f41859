"""Threads that still run something when the interpreter ends."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING

from lockstitch.runtime.ending import end_threads, interrupt
from tests.unit.runtime.stage import wait_until

if TYPE_CHECKING:
    import pytest


def compute(is_running: threading.Event) -> None:
    number = 0
    with contextlib.suppress(SystemExit):
        while True:
            number += 1
            is_running.set()


def sleep(wake: threading.Event) -> None:
    with contextlib.suppress(SystemExit):
        wake.wait(60)


def start(function, *args) -> threading.Thread:
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_one_that_computes_is_ended() -> None:
    is_running = threading.Event()
    thread = start(compute, is_running)
    assert is_running.wait(10)
    end_threads([thread], 60)
    assert not thread.is_alive()


def test_time_that_leaps_because_the_process_was_stopped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_running = threading.Event()
    thread = start(compute, is_running)
    assert is_running.wait(10)
    leaps = itertools.count(0, 1000)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(leaps)))
    end_threads([thread], 60)
    assert not thread.is_alive()


def test_one_that_sleeps_is_left_alone() -> None:
    wake = threading.Event()
    thread = start(sleep, wake)
    assert end_threads([thread], 60) == [thread]
    assert thread.is_alive()
    wake.set()
    wait_until(lambda: not thread.is_alive())


def test_one_that_has_ended_is_no_matter() -> None:
    thread = start(int)
    thread.join()
    interrupt(thread)
    end_threads([thread, threading.current_thread()], 60)
