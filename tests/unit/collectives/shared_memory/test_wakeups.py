"""Sleeping, waking and dying, with descriptors made here."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from lockstitch.collectives.shared_memory.introduction import SharedDescriptors, own_descriptors
from lockstitch.collectives.shared_memory.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sleepers() -> memoryview:
    return memoryview(bytearray(16)).cast("Q")


@pytest.fixture
def child() -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def wakeups(sleepers: memoryview, child: int) -> Iterator[Wakeups]:
    own, other = own_descriptors(), own_descriptors()
    os.close(other[1])
    known = SharedDescriptors(-1, [own[0], other[0]], [own[1], os.pidfd_open(child)])
    made = Wakeups(0, known, sleepers)
    yield made
    made.close()
    made.close()


def sleep(wakeups: Wakeups, seconds: float) -> list[int] | None:
    return wakeups.sleep_unless(lambda: False, seconds)


def test_who_announces_sleep_is_woken(wakeups: Wakeups, sleepers: memoryview) -> None:
    def wake() -> bool:
        assert wakeups.is_asleep
        wakeups.wake([0])
        return False

    assert wakeups.sleep_unless(wake, 30) == []
    assert sleepers.tolist() == [0, 0]


def test_who_is_awake_is_not_woken(wakeups: Wakeups) -> None:
    wakeups.wake([0])
    assert sleep(wakeups, 0) == []
    wakeups.wake_own()
    assert sleep(wakeups, 30) == []


def test_death_wakes(wakeups: Wakeups, child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert sleep(wakeups, 30) == [1]


def test_end_of_a_rank_that_said_goodbye_is_no_death(wakeups: Wakeups, child: int) -> None:
    assert wakeups.is_watched(1)
    wakeups.forget(1)
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert sleep(wakeups, 0) == []
    assert not wakeups.is_watched(1)


def test_nothing_is_written_to_a_descriptor_that_was_given_back(
    wakeups: Wakeups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By who wakes another while this rank's session is closed: its number may be a file's."""
    has_begun, closers = threading.Event(), []
    write = os.eventfd_write

    def close_first(descriptor: int, number: int) -> None:
        if not has_begun.is_set():
            has_begun.set()
            closers.append(threading.Thread(target=wakeups.close))
            closers[0].start()
            closers[0].join(0.1)
        write(descriptor, number)  # an `OSError` where it is closed

    monkeypatch.setattr(os, "eventfd_write", close_first)
    wakeups.wake_own()
    closers[0].join()
    wakeups.wake_own()
