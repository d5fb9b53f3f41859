"""The cluster in one process, as a user's test meets it."""

from __future__ import annotations

import threading

import pytest

from lockstitch import rpc
from lockstitch.errors import NotInitializedError, PeerDiedError, RpcTimeoutError
from lockstitch.runtime.worker import current_worker
from lockstitch.testing import Faults, LocalCluster, ManualClock
from lockstitch.wire.messages import Call


def _name() -> str:
    return current_worker().name


def test_workers_are_named_by_rank_or_as_one_wishes() -> None:
    with LocalCluster(2) as cluster:
        assert [worker.name for worker in cluster] == ["worker0", "worker1"]
    with LocalCluster(["trainer", "server"]) as cluster:
        assert cluster["server"] is cluster[1]
        assert len(cluster) == 2


def test_code_runs_as_the_worker_that_one_says() -> None:
    with LocalCluster(2) as cluster:
        assert cluster.run("worker1", _name) == "worker1"
        assert cluster.run("worker0", rpc.rpc_sync, "worker1", _name) == "worker1"
        with pytest.raises(NotInitializedError):
            _name()


def test_a_killed_worker_is_dead_to_the_others() -> None:
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        assert rpc.rpc_sync("worker1", _name) == "worker1"
        cluster.kill("worker1")
        with pytest.raises(PeerDiedError, match="worker1"):
            rpc.rpc_sync("worker1", _name)


def test_a_lost_call_ends_in_its_timeout_when_the_test_says_that_time_has_passed() -> None:
    clock = ManualClock()
    faults = Faults().drop(Call, nth=1)
    with LocalCluster(2, faults=faults, clock=clock) as cluster, cluster["worker0"].active():
        answer = rpc.rpc_async("worker1", _name, timeout=5)
        clock.wait_until_waiting(1)
        clock.advance(6)
        with pytest.raises(RpcTimeoutError):
            answer.wait()
        assert rpc.rpc_sync("worker1", _name) == "worker1"


def test_a_partition_separates_two_workers_until_it_is_over() -> None:
    with LocalCluster(3) as cluster, cluster["worker0"].active():
        assert rpc.rpc_sync("worker1", _name) == "worker1"
        with cluster.partition("worker0", "worker1"):
            with pytest.raises(RpcTimeoutError):
                rpc.rpc_sync("worker1", _name, timeout=0.05)
            assert rpc.rpc_sync("worker2", _name) == "worker2"
        assert rpc.rpc_sync("worker1", _name) == "worker1"


def test_nothing_is_left_when_it_closes() -> None:
    with LocalCluster(2) as cluster:
        cluster.run("worker0", rpc.rpc_sync, "worker1", _name)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("worker")]
