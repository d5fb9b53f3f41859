"""Who is in a group of a fixed size: all, until somebody is gone."""

from __future__ import annotations

import threading

import pytest

from lockstitch import rpc
from lockstitch.errors import RpcError
from lockstitch.rpc.workers import begin_callbacks
from lockstitch.runtime.worker import PROCESS
from lockstitch.testing.cluster import LocalCluster
from tests.unit.rpc.programs import add


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster:
        yield cluster


def test_all_are_there_from_the_beginning(cluster) -> None:
    names = [info.name for info in cluster.run(1, rpc.get_worker_infos)]
    assert names == ["worker0", "worker1", "worker2"]
    assert cluster.run(1, rpc.wait_for_worker, "worker2").id == 2
    with pytest.raises(RpcError, match="'other' is not in this group, or is gone"):
        cluster.run(1, rpc.wait_for_worker, "other")
    with pytest.raises(RuntimeError, match="nobody can join a group of a fixed world_size"):
        cluster.run(1, rpc.invitation)


def test_who_dies_is_missing_and_callbacks_are_told(cluster) -> None:
    heard, told = [], threading.Event()

    def callback(event: rpc.MembershipEvent) -> None:
        heard.append((event.kind, event.worker.name))
        if event.kind == "died":
            told.set()

    end = cluster.run(0, rpc.add_membership_callback, callback)
    assert cluster.run(0, rpc.rpc_sync, "worker1", add, (1, 2)) == 3
    cluster.kill("worker1")
    assert told.wait(60)
    assert heard == [("joined", "worker1"), ("joined", "worker2"), ("died", "worker1")]
    assert [info.id for info in cluster.run(0, rpc.get_worker_infos)] == [0, 2]
    end()


def test_callbacks_added_before_there_is_a_worker_are_for_the_next_one(cluster) -> None:
    heard, told = [], threading.Event()

    def callback(event: rpc.MembershipEvent) -> None:
        heard.append(event.worker.name)
        if len(heard) == 2:
            told.set()

    end = rpc.add_membership_callback(callback)
    never = rpc.add_membership_callback(lambda event: heard.append("never"))
    never()
    assert len(PROCESS.before_worker) == 1
    begin_callbacks(cluster[0])
    assert PROCESS.before_worker == []
    assert told.wait(60)
    assert heard == ["worker1", "worker2"]
    end()
