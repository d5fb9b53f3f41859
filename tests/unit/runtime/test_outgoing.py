"""Calls that cannot be made, or are not answered in time."""

from __future__ import annotations

import pytest

from lockstitch import rpc
from lockstitch.errors import PeerDiedError, RpcTimeoutError
from lockstitch.ids import WorkerId
from lockstitch.testing import LocalCluster
from lockstitch.testing.clock import ManualClock
from tests.unit.runtime.stage import Background, Stage, wait_until

ME, PEER = WorkerId(0, 0), WorkerId(1, 0)


def test_request_that_cannot_be_sent_fails_its_future() -> None:
    with Stage() as stage:
        stage.caller().close()
        wait_until(lambda: stage.agent.peers.is_lost(PEER))
        future = stage.call_async()
        with pytest.raises(PeerDiedError):
            future.wait()


def test_timeouts_of_a_call() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        stage.agent.default_timeout = 50
        for given, travels in ((-1.0, None), (0.0, None), (7.0, 7.0)):
            stage.call_async(timeout=given)
            assert stage.peer.receive_call().timeout == travels
        waiter = Background(lambda: stage.call(timeout=-1))
        stage.peer.receive_call()
        clock.wait_until_waiting()
        clock.advance(50)
        with pytest.raises(RpcTimeoutError, match=r"50000 ms.*'peer1' did not answer"):
            waiter.result()


def test_calls_of_both_kinds_are_told_with_the_callee_and_the_function() -> None:
    told: list[tuple[str, object]] = []
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        cluster["worker0"].agent.outgoing.tell_calls(lambda *about: told.append(about))
        assert rpc.rpc_sync("worker1", abs, (-3,)) == 3
        assert rpc.rpc_async("worker1", len, ("four",)).wait() == 4
    assert told == [("worker1", abs), ("worker1", len)]
