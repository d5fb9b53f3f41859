"""Whether there is a SparkContext, and room for all ranks in it."""

from __future__ import annotations

import importlib
import sys

import pytest

from lockstitch.errors import CollectiveError, NotInitializedError
from lockstitch.spark import context
from lockstitch.testing import ManualClock
from tests.unit.spark.fakes import FakeContext, FakeSpark


class SteppingClock(ManualClock):
    """Whoever waits finds the time over."""

    def __init__(self):
        super().__init__()
        self.began_at = self.now()

    def wait(self, _waiter, timeout_seconds):
        self.advance(timeout_seconds)
        return False

    @property
    def waited(self):
        return self.now() - self.began_at


@pytest.fixture
def clock():
    return SteppingClock()


def test_without_pyspark_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ImportError, match=r"install lockstitch\[spark\]") as caught:
        context.active_context()
    assert caught.value.name == "pyspark"
    monkeypatch.delitem(sys.modules, "lockstitch.hvd.spark", raising=False)
    with pytest.raises(ImportError, match=r"install lockstitch\[spark\]"):
        importlib.import_module("lockstitch.hvd.spark")


def test_without_an_active_context_it_is_said(monkeypatch):
    FakeSpark(None).install(monkeypatch)
    with pytest.raises(NotInitializedError, match="Could not find an active SparkContext"):
        context.active_context()


def test_room_that_is_there_is_not_waited_for(clock):
    context.wait_for_room(FakeContext(room=(4,)), 4, 600.0, clock)
    assert clock.waited == 0


def test_threads_of_this_process_never_become_more(clock):
    with pytest.raises(CollectiveError, match=r"5 ranks .* local\[4\] can run 4 tasks at once"):
        context.wait_for_room(FakeContext(room=(4,)), 5, 600.0, clock)
    assert clock.waited == 0


def test_executors_that_come_one_after_another_are_waited_for(clock):
    # Each a little earlier than when nobody is expected any more.
    looks = int(context.SETTLING_SECONDS / 0.25) - 2
    room = [number for number in (1, 2, 3, 4) for _ in range(looks)]
    context.wait_for_room(FakeContext("spark://h:7077", room), 4, 600.0, clock)
    assert clock.waited > 2 * context.SETTLING_SECONDS


def test_when_no_executor_comes_any_more_that_is_said_within_seconds(clock):
    with pytest.raises(CollectiveError, match=r"4 ranks .* spark://h:7077 can run 2 tasks"):
        context.wait_for_room(FakeContext("spark://h:7077", (1, 2)), 4, 600.0, clock)
    assert clock.waited <= context.SETTLING_SECONDS + 1


def test_room_is_waited_for_no_longer_than_ranks_may_take_to_begin(clock):
    with pytest.raises(CollectiveError, match="can run 2 tasks at once"):
        context.wait_for_room(FakeContext("spark://h:7077", (2,)), 4, 3.0, clock)
    assert clock.waited <= 4


def test_threads_of_this_process_are_not_allocated_whatever_the_settings_say(clock):
    conf = {"spark.dynamicAllocation.enabled": "true"}
    context.wait_for_room(FakeContext(room=(4,), conf=conf), 4, 600.0, clock)


def test_a_barrier_stage_and_dynamic_allocation_do_not_go_together(clock):
    conf = {"spark.dynamicAllocation.enabled": "true"}
    with pytest.raises(CollectiveError, match=r"spark\.dynamicAllocation\.enabled=false"):
        context.wait_for_room(FakeContext("spark://h:7077", conf=conf), 1, 600.0, clock)
