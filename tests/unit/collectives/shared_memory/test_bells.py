"""Sleeping, waking and dying, with descriptors made here."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from lockstitch.collectives.shared_memory.bells import Bells
from lockstitch.collectives.shared_memory.introduction import Acquaintance, own_descriptors
from lockstitch.fences import Fence

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
def bells(sleepers: memoryview, child: int) -> Iterator[Bells]:
    own, other = own_descriptors(), own_descriptors()
    os.close(other[1])
    known = Acquaintance(-1, [own[0], other[0]], [own[1], os.pidfd_open(child)])
    made = Bells(0, known, sleepers, Fence())
    yield made
    made.close()
    made.close()


def test_who_lies_down_is_rung_for(bells: Bells, sleepers: memoryview) -> None:
    bells.lie_down()
    assert bells.is_asleep
    bells.ring([0])
    assert bells.sleep(30) == []
    bells.get_up()
    assert sleepers.tolist() == [0, 0]


def test_who_is_awake_is_not_rung_for(bells: Bells) -> None:
    bells.ring([0])
    assert bells.sleep(0) == []
    bells.ring_own()
    assert bells.sleep(30) == []


def test_death_wakes(bells: Bells, child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert bells.sleep(30) == [1]


def test_end_of_a_rank_that_said_goodbye_is_no_death(bells: Bells, child: int) -> None:
    assert bells.watches(1)
    bells.forget(1)
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert bells.sleep(0) == []
    assert not bells.watches(1)
