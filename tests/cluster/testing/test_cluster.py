"""A cluster in one process: real workers, a network that obeys the test."""

from __future__ import annotations

import pytest

from lockstitch import rpc
from lockstitch.errors import NotInitializedError, PeerDiedError
from lockstitch.runtime.worker import current_worker
from lockstitch.testing import LocalCluster, ManualClock, no_leaks


def name() -> str:
    return rpc.get_worker_info().name


def test_workers_are_found_by_name_and_rank_and_in_their_order() -> None:
    with LocalCluster(["ps", "trainer"]) as cluster:
        assert cluster["ps"] is cluster[0]
        assert [worker.name for worker in cluster] == cluster.names == ["ps", "trainer"]
        assert len(cluster) == 2
        assert cluster[1].info.id == 1


def test_functions_run_as_code_of_a_worker() -> None:
    with LocalCluster(2) as cluster:
        assert cluster.run("worker1", name) == "worker1"
        assert cluster.run(0, rpc.rpc_sync, "worker1", name) == "worker1"
        with pytest.raises(NotInitializedError):
            current_worker()


def test_killed_worker_is_dead_for_the_others() -> None:
    with LocalCluster(3) as cluster, cluster[0].active():
        cluster.kill("worker1")
        with pytest.raises(PeerDiedError):
            rpc.rpc_sync("worker1", name)
        assert rpc.rpc_sync("worker2", name) == "worker2"


def test_partition_lasts_as_long_as_its_block() -> None:
    with LocalCluster(2) as cluster, cluster[0].active():
        rpc.rpc_sync("worker1", name)
        with cluster.partition("worker0", "worker1"), pytest.raises(TimeoutError):
            rpc.rpc_sync("worker1", name, timeout=0.02)
        assert rpc.rpc_sync("worker1", name) == "worker1"


def test_workers_live_in_the_time_of_the_clock_that_is_given() -> None:
    clock = ManualClock(100.0)
    with LocalCluster(1, clock=clock) as cluster:
        assert cluster[0].clock.now() == 100.0


def test_nothing_is_left_when_the_block_is_over_even_by_an_error() -> None:
    def block() -> None:
        with LocalCluster(3) as cluster:
            cluster.run(0, rpc.rpc_sync, "worker1", name)
            raise KeyError

    with no_leaks(), pytest.raises(KeyError):
        block()
