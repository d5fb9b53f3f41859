"""A function runs once at most, and not at all where nobody waits for it any more."""

from __future__ import annotations

from collections import Counter

import pytest

from lockstitch.errors import RpcTimeoutError
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.clock import ManualClock
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.wire.messages import Alive, Call, Cancel, Heartbeat
from tests.cluster.runtime.programs import Gate, call, call_async, here
from tests.unit.runtime.stage import Background, Stage, wait_until

RAN: Counter[object] = Counter()


def run(what: object) -> object:
    RAN[what] += 1
    return what


def test_a_request_that_comes_twice_is_served_once() -> None:
    RAN.clear()
    faults = Faults().repeat(Call, copies=2, times=None).reorder(Call, nth=3, times=2)
    with LocalCluster(2, faults=faults) as cluster:
        futures = [call_async(cluster[0], 1, run, number) for number in range(20)]
        assert [Background(each.wait).result() for each in futures] == list(range(20))
        assert call(cluster[0], 1, here)[0] == "worker1"
        assert dict.fromkeys(range(20), 1) == RAN
        wait_until(lambda: cluster[1].agent.statistics().repeated >= 40)


def test_whoever_gives_up_after_a_timeout_of_its_own_says_so() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        future = stage.call_async("hello", timeout=5)
        request = stage.peer.receive_call().request
        clock.wait_until_waiting()
        clock.advance(5)
        with pytest.raises(RpcTimeoutError):
            Background(future.wait).result()
        assert stage.peer.receive() == Cancel(request)


def test_what_is_cancelled_is_not_begun() -> None:
    RAN.clear()
    clock = ManualClock()  # it stands still: the timeout alone would not keep it from running
    with Stage(clock=clock, options=AgentOptions(num_threads=1)) as stage:
        caller = stage.caller()
        here_ = "tests.cluster.runtime.test_once"
        caller.send(caller.call("tests.cluster.runtime.programs:wait_at_gate"))
        caller.send(wanted := caller.call(f"{here_}:run", "wanted", timeout=60.0))
        caller.send(unwanted := caller.call(f"{here_}:run", "unwanted", timeout=60.0))
        assert wanted.request < unwanted.request
        caller.send(Cancel(unwanted.request), Heartbeat(1))
        assert caller.receive() == Alive(1)  # so it has read all that was sent before
        Gate.opened.set()
        caller.receive()
        assert caller.answer() == "wanted"
        wait_until(stage.agent.is_at_rest)
        assert RAN == {"wanted": 1}
