"""The monitor looks seldom where that is of no use, at once more often where it is, and rests where
nothing happens."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lockstitch.runtime.monitor import Checks, Monitor, Pace, Sight
from tests.unit.runtime.stage import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORTEST, LONGEST = 0.001, 0.016


def calm(pace: Pace, looks: int, sight: Sight = Sight.ACTIVE) -> None:
    for _ in range(looks):
        pace.note(sight)


def test_looks_that_find_nothing_become_rare() -> None:
    pace, seconds = Pace(), [SHORTEST]
    for _ in range(200):
        pace.note(Sight.ACTIVE)
        if pace.seconds != seconds[-1]:
            seconds.append(pace.seconds)
    assert seconds == [0.001, 0.002, 0.004, 0.008, 0.016]


def test_what_has_begun_is_looked_at_again_soon() -> None:
    pace = Pace()
    calm(pace, 200)
    pace.note(Sight.RUNNING)
    assert pace.seconds == SHORTEST
    pace.note(Sight.ACTIVE)
    assert pace.seconds == LONGEST


def test_where_it_is_needed_it_looks_more_often() -> None:
    pace = Pace()
    calm(pace, 200)
    pace.note(Sight.NEEDED)
    assert pace.seconds == LONGEST / 2
    calm(pace, 3, Sight.NEEDED)
    assert pace.seconds == SHORTEST
    pace.note(Sight.NEEDED)
    assert pace.seconds == SHORTEST


def test_what_could_not_wait_has_it_look_every_millisecond() -> None:
    pace = Pace()
    calm(pace, 200)
    pace.hasten()
    assert pace.seconds == SHORTEST
    calm(pace, 7)
    assert pace.seconds == SHORTEST
    calm(pace, 1)
    assert pace.seconds == 2 * SHORTEST


class Scene:
    """A monitor, and what it is to see."""

    def __init__(self) -> None:
        self.sight = Sight.ACTIVE
        self.looks = 0
        self.monitor = Monitor("scene", self._look)

    def _look(self) -> Sight:
        self.looks += 1
        return self.sight


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.monitor.close()
    thread = scene.monitor.thread
    if thread is not None:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_it_has_no_thread_before_it_is_roused(scene: Scene) -> None:
    assert scene.monitor.thread is None
    assert scene.monitor.rests


def test_it_looks_on_while_something_happens(scene: Scene) -> None:
    scene.monitor.rouse()
    wait_until(lambda: scene.looks > 20)
    assert not scene.monitor.rests


def test_it_rests_and_is_roused_again(scene: Scene) -> None:
    scene.sight = Sight.QUIET
    scene.monitor.rouse()
    wait_until(lambda: scene.monitor.rests)
    looks = scene.looks
    scene.sight = Sight.ACTIVE
    scene.monitor.rouse()
    wait_until(lambda: scene.looks > looks + 2)


def test_what_happens_just_before_it_rests_is_not_missed() -> None:
    looks: list[Sight] = []
    again = threading.Event()

    def look() -> Sight:
        looks.append(Sight.ACTIVE if monitor.rests else Sight.QUIET)
        if looks.count(Sight.ACTIVE) == 2:
            again.set()
        return looks[-1]

    monitor = Monitor("scene", look)
    monitor.rouse()
    assert again.wait(PATIENCE_SECONDS)
    monitor.close()


def test_a_closed_one_starts_no_thread() -> None:
    monitor = Monitor("scene", lambda: Sight.QUIET)
    monitor.close()
    monitor.close()
    monitor.rouse()
    assert monitor.thread is None


def test_where_there_are_no_more_threads_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    looks: list[int] = []
    monitor = Monitor("test", lambda: looks.append(1) or Sight.QUIET)  # type: ignore[func-returns-value]
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        monitor.rouse()
    assert monitor.rests
    monitor.rouse()
    wait_until(lambda: looks)
    thread = monitor.thread
    monitor.close()
    assert thread is not None
    thread.join(PATIENCE_SECONDS)


def test_checks_are_called_until_they_return_true() -> None:
    errors: list[BaseException] = []
    checks = Checks(errors.append)
    assert not checks.run()
    results = [True, False, False]
    checks.add(results.pop)
    checks.add({}.popitem)  # type: ignore[arg-type]
    assert checks.run()
    assert [type(error) for error in errors] == [KeyError]  # it is not called again
    assert checks.run()
    assert checks.run()
    assert not checks.run()
    assert len(errors) == 1
