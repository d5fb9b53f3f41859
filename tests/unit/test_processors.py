"""Which processor is taken for idle, on a made-up host; and that moving works on this one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lockstitch.processors import IdleWatch, Processors, _parsed, yielding_group

if TYPE_CHECKING:
    from pathlib import Path


class Host(Processors):
    """Processors that are idle for as long as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = [0.0, 0.0, 0.0]
        self.looks = 0

    def idle_seconds(self) -> dict[int, float]:
        self.looks += 1
        return dict(enumerate(self.idle))


class Watched:
    """A watch, and the time that passes."""

    def __init__(self) -> None:
        self.host = Host()
        self.watch = IdleWatch(self.host)
        self.seconds = 0.0

    def find(self, seconds: float = 0.1, **idle: float) -> int | None:
        """So much time passes, of which each processor is idle for a share."""
        self.seconds += seconds
        for name, share in idle.items():
            self.host.idle[int(name.removeprefix("cpu"))] += share * seconds
        return self.watch.find((1, 2), self.seconds)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_idlest_of_the_candidates_is_found(watched: Watched) -> None:
    assert watched.find() is None
    assert watched.find(cpu0=1.0, cpu1=0.6, cpu2=0.8) == 2


def test_what_is_busy_for_half_of_the_time_is_not_idle(watched: Watched) -> None:
    watched.find()
    assert watched.find(cpu0=1.0, cpu1=0.4) is None


def test_who_has_found_one_begins_anew(watched: Watched) -> None:
    watched.find()
    assert watched.find(cpu1=1.0) == 1
    assert watched.find(cpu1=1.0) is None
    assert watched.find(cpu1=1.0) == 1


def test_one_looks_again_later_and_later(watched: Watched) -> None:
    for _ in range(1000):
        watched.find(0.01)
    assert 10 < watched.host.looks < 30


def test_what_was_seen_long_ago_tells_nothing(watched: Watched) -> None:
    watched.find()
    assert watched.find(60.0, cpu1=1.0) is None
    assert watched.find(cpu1=1.0) == 1


def test_where_there_is_one_processor_there_is_nowhere_to_go(watched: Watched) -> None:
    watched.find()
    assert watched.watch.find((), 1.0) is None


def test_moving_leaves_a_thread_free_to_run_anywhere() -> None:
    processors = Processors()
    before = os.sched_getaffinity(0)
    assert processors.current() in processors.allowed()
    for processor in processors.allowed():
        processors.move_to(processor)
        assert os.sched_getaffinity(0) == before
        assert processors.idle_seconds()[processor] >= 0
        assert processor in processors.near(processor)


def test_lists_of_the_kernel_are_understood() -> None:
    assert _parsed("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}


@pytest.mark.parametrize(
    ("setting", "is_by_session"), [("1\n", True), ("0\n", False), (None, False)]
)
def test_processes_of_a_session_yield_to_each_other(
    setting: str | None, is_by_session: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "setting"
    if setting is not None:
        file.write_text(setting)
    monkeypatch.setattr("lockstitch.processors._AUTOGROUPS", file)
    assert yielding_group() == (os.getsid(0) if is_by_session else 0)
