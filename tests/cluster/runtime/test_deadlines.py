"""Calls end in time, whatever becomes of their answers; nested calls inherit what remains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.errors import RpcTimeoutError
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.wire.messages import Call, Reply
from tests.cluster.runtime.programs import (
    Gate,
    add,
    call,
    call_async,
    seconds_left,
    seconds_left_at,
    wait_at_gate,
)
from tests.unit.runtime.stage import Background, wait_until

if TYPE_CHECKING:
    from lockstitch.testing.clock import ManualClock

SOMEBODY = ["worker1", "worker0"]


@pytest.mark.parametrize("to", SOMEBODY)
def test_call_that_takes_too_long(timed: LocalCluster, clock: ManualClock, to: str) -> None:
    waiter = Background(lambda: call(timed[0], to, wait_at_gate, timeout=5))
    future = call_async(timed[0], to, wait_at_gate, timeout=3)
    Gate.await_entries(2)
    clock.wait_until_waiting()
    clock.advance(5)
    for wait in (waiter.result, Background(future.wait).result):
        with pytest.raises(RpcTimeoutError, match="RPC ran for more than set timeout"):
            wait()
    assert isinstance(_error_of(waiter), TimeoutError)
    Gate.opened.set()  # the late answers are ignored
    assert call(timed[0], to, add, 1) == 11


def _error_of(background: Background) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        background.result()
    return caught.value


def test_default_timeout_is_that_of_the_time_of_the_call(
    timed: LocalCluster, clock: ManualClock
) -> None:
    agent = timed[0].agent
    agent.default_timeout = 5
    short = call_async(timed[0], 1, wait_at_gate)
    agent.default_timeout = 50
    long = call_async(timed[0], 1, wait_at_gate, 7)
    never = call_async(timed[0], 1, wait_at_gate, 8, timeout=0)
    agent.default_timeout = 1
    Gate.await_entries(3)
    clock.wait_until_waiting()
    clock.advance(5)
    wait_until(short.done)
    assert not long.done()
    clock.wait_until_waiting()
    clock.advance(45)
    wait_until(long.done)
    clock.advance(1e6)
    assert not never.done()
    Gate.opened.set()
    assert never.wait() == 8


@pytest.mark.parametrize("message", [Call, Reply])
def test_lost_messages_end_in_a_timeout_and_harm_no_other(
    clock: ManualClock, message: type[Call] | type[Reply]
) -> None:
    faults = Faults().drop(message, nth=2)
    options = AgentOptions(interned_functions=0)
    with LocalCluster(2, clock=clock, faults=faults, options=options) as cluster:
        assert call(cluster[0], 1, add, 1) == 11
        lost = call_async(cluster[0], 1, add, 2, timeout=5)
        assert call(cluster[0], 1, add, 3) == 13
        clock.wait_until_waiting()
        clock.advance(5)
        with pytest.raises(RpcTimeoutError, match="5000 ms"):
            Background(lost.wait).result()


def test_repeated_and_reordered_replies_reach_the_right_callers() -> None:
    faults = Faults().repeat(Reply, times=None, copies=2).reorder(Reply, nth=3, times=20)
    with LocalCluster(2, faults=faults) as cluster:
        futures = [call_async(cluster[0], 1, add, n, timeout=9) for n in range(50)]
        assert [future.wait() for future in futures] == [n + 10 for n in range(50)]


# ---------------------------------------------------------------- inheritance


def test_timeout_of_the_user_travels_with_the_call(timed: LocalCluster) -> None:
    assert call(timed[0], 1, seconds_left, timeout=7) == 7
    assert call(timed[0], 0, seconds_left, timeout=7) == 7


def test_default_timeout_does_not_travel(timed: LocalCluster) -> None:
    assert call(timed[0], 1, seconds_left) is None
    assert call(timed[0], 1, seconds_left, timeout=0) is None


def test_nested_call_inherits_what_remains_unless_it_wants_less(timed: LocalCluster) -> None:
    for wanted, left in ((-1, 7), (100, 7), (0, 7), (3, 3)):
        assert call(timed[0], 1, seconds_left_at, "worker0", wanted, timeout=7) == left
    assert call(timed[0], 1, seconds_left_at, "worker0", -1) is None


def test_nothing_is_inherited_by_the_next_call_on_the_same_thread(timed: LocalCluster) -> None:
    for _ in range(20):  # it gets quick, and is run by the reading thread
        assert call(timed[0], 1, seconds_left, timeout=7) == 7
    assert call(timed[0], 1, seconds_left) is None


def test_queued_calls_of_a_caller_that_gave_up_are_dropped(clock: ManualClock) -> None:
    with LocalCluster(2, clock=clock, options=AgentOptions(num_threads=1)) as cluster:
        running = call_async(cluster[0], 1, wait_at_gate, timeout=0)
        Gate.await_entries()
        queued = call_async(cluster[0], 1, wait_at_gate, timeout=5)
        patient = call_async(cluster[0], 1, add, 1, timeout=0)
        wait_until(lambda: cluster[1].agent.thread_pool.backlog == 2)
        clock.wait_until_waiting()
        clock.advance(5)
        wait_until(queued.done)
        Gate.opened.set()
        assert patient.wait() == 11
        running.wait()
        assert Gate.count == 1
