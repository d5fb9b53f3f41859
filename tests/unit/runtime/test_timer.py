"""Delayed tasks run at their time and in order; deadlines are looked at when the first comes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.runtime.timer import Deadlines, Timer
from lockstitch.testing.clock import ManualClock
from tests.unit.runtime.stage import Background, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.clock import Waiter


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.errors: list[BaseException] = []
        self.timer = Timer(self.clock, "test", self.errors.append)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.timer.close()


def test_tasks_run_in_the_order_of_their_times(scene: Scene) -> None:
    ran: list[str] = []
    for seconds in (3, 1, 2):
        scene.timer.call_later(seconds, lambda seconds=seconds: ran.append(f"{seconds}"))  # type: ignore[misc]
    scene.clock.wait_until_waiting()
    assert ran == []
    scene.clock.advance(2.5)
    wait_until(lambda: len(ran) == 2)
    assert ran == ["1", "2"]
    scene.clock.wait_until_waiting()
    scene.clock.advance(1)
    wait_until(lambda: ran == ["1", "2", "3"])


def test_earlier_task_overtakes_a_sleeping_timer(scene: Scene) -> None:
    ran: list[str] = []
    scene.timer.call_later(100, lambda: ran.append("late"))
    scene.clock.wait_until_waiting()
    scene.timer.call_later(1, lambda: ran.append("early"))
    scene.clock.wait_until_waiting()
    scene.clock.advance(1)
    wait_until(lambda: ran == ["early"])


def test_task_that_fails_is_reported_and_the_next_runs(scene: Scene) -> None:
    ran: list[int] = []
    scene.timer.call_later(1, lambda: 1 / 0)
    scene.timer.call_later(1, lambda: ran.append(1))
    scene.clock.wait_until_waiting()
    scene.clock.advance(1)
    wait_until(lambda: ran)
    assert [type(error) for error in scene.errors] == [ZeroDivisionError]


def test_task_may_schedule_the_next(scene: Scene) -> None:
    ran: list[float] = []

    def tick() -> None:
        ran.append(scene.clock.now())
        if len(ran) < 3:
            scene.timer.call_later(1, tick)

    scene.timer.call_later(1, tick)
    for count in (1, 2, 3):
        scene.clock.wait_until_waiting()
        scene.clock.advance(1)
        wait_until(lambda count=count: len(ran) == count)  # type: ignore[misc]
    assert ran == [1, 2, 3]


def test_unused_timer_has_no_thread_and_closed_one_drops_its_tasks(scene: Scene) -> None:
    before = threading.active_count()
    Timer(scene.clock, "unused", scene.errors.append).close()
    assert threading.active_count() == before
    scene.timer.call_later(1, lambda: scene.errors.append(AssertionError("ran after the end")))
    scene.clock.wait_until_waiting()
    Background(scene.timer.close).result()
    scene.timer.call_later(0, lambda: scene.errors.append(AssertionError("ran after the end")))
    scene.clock.advance(5)
    assert scene.errors == []


def test_closing_waits_for_a_task_that_takes_its_time_only_so_long() -> None:
    timer = Timer(SYSTEM_CLOCK, "slow", lambda error: None)
    begun, goes_on = threading.Event(), threading.Event()
    timer.call_later(0, lambda: (begun.set(), goes_on.wait(60)))
    assert begun.wait(60)
    timer.close(0.01)
    (thread,) = timer.living()
    goes_on.set()
    timer.close()
    assert not thread.is_alive()
    assert timer.living() == []


def test_timer_may_be_closed_by_its_own_task() -> None:
    timer = Timer(SYSTEM_CLOCK, "own", lambda error: None)
    closed = threading.Event()
    timer.call_later(0, lambda: (timer.close(), closed.set()))
    assert closed.wait(10)


# ---------------------------------------------------------------- deadlines


class Calls:
    """Deadlines that are outstanding, as channels keep them."""

    def __init__(self, scene: Scene) -> None:
        self.outstanding: list[float] = []
        self.expired: list[float] = []
        self.looks = 0
        self.deadlines = Deadlines(scene.timer, scene.clock, self.sweep)

    def sweep(self, now: float) -> float | None:
        self.looks += 1
        self.expired += [each for each in self.outstanding if each <= now]
        self.outstanding = [each for each in self.outstanding if each > now]
        return min(self.outstanding, default=None)

    def add(self, deadline: float) -> None:
        self.outstanding.append(deadline)
        self.deadlines.announce(deadline)


def test_deadlines_expire_each_at_its_time(scene: Scene) -> None:
    calls = Calls(scene)
    for deadline in (5.0, 2.0, 9.0, 2.0):
        calls.add(deadline)
    for moment, expired in ((2, [2.0, 2.0]), (5, [2.0, 2.0, 5.0]), (9, [2.0, 2.0, 5.0, 9.0])):
        scene.clock.wait_until_waiting()
        scene.clock.advance(moment - scene.clock.now())
        wait_until(lambda expired=expired: calls.expired == expired)  # type: ignore[misc]
    assert calls.looks <= 4


def test_many_calls_with_the_same_timeout_make_few_looks(scene: Scene) -> None:
    calls = Calls(scene)
    for number in range(1000):
        calls.add(60.0 + number * 1e-3)
    assert len(scene.timer._heap) == 1
    calls.outstanding.clear()
    scene.clock.wait_until_waiting()
    scene.clock.advance(60)
    wait_until(lambda: calls.looks == 1)
    assert scene.timer._heap == []


class Hasty(ManualClock):
    """Its time moves on when somebody is about to wait on it."""

    def wait(self, waiter: Waiter, timeout_seconds: float | None) -> bool:
        self._now = 5.0
        return super().wait(waiter, timeout_seconds)

    def wait_until(self, waiter: Waiter, deadline: float | None) -> bool:
        self._now = max(self._now, 5.0)
        return super().wait_until(waiter, deadline)


def test_time_that_passes_before_the_timer_waits_counts() -> None:
    ran: list[str] = []
    timer = Timer(Hasty(), "hasty", lambda error: None)
    timer.call_later(5.0, lambda: ran.append("in time"))
    wait_until(lambda: ran)
    timer.close()


def test_deadlines_announced_by_many_threads_are_all_kept(scene: Scene) -> None:
    calls = Calls(scene)
    announcers = [
        Background(lambda start=start: [calls.add(float(n)) for n in range(start, 0, -7)])  # type: ignore[misc]
        for start in range(200, 207)
    ]
    for announcer in announcers:
        announcer.result()
    assert calls.deadlines.next == min(calls.outstanding)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5), st.floats(0, 1e9))
def test_no_rounding_keeps_a_deadline_from_its_time(seconds: list[float], start: float) -> None:
    looked: list[float] = []
    clock = ManualClock(start)
    timer = Timer(clock, "rounding", lambda error: None)
    timer._run = lambda: None  # type: ignore[method-assign] - the test runs the tasks itself
    deadlines = Deadlines(timer, clock, lambda now: looked.append(now))  # type: ignore[func-returns-value]
    for each in seconds:
        deadlines.announce(start + each)
    clock._now = start + min(seconds)
    due = [task for when, _, task in timer._heap if when <= clock.now()]
    for task in due:
        task()
    timer.close()
    assert looked == [clock.now()]


def test_where_there_are_no_more_threads_the_next_task_tries_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        scene.timer.call_later(0, lambda: ran.append(1))
    assert "can't start" in str(scene.errors)
    scene.timer.call_later(0, lambda: ran.append(2))
    wait_until(lambda: ran == [1, 2])
