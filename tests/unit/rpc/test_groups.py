"""What a set of workers does together, by calls that programs may patch."""

from __future__ import annotations

import threading

import pytest

from lockstitch import rpc
from lockstitch.errors import RpcTimeoutError
from lockstitch.rpc import api
from lockstitch.rpc.quiescence import Quiescence
from lockstitch.runtime.functions import qualified_name
from lockstitch.testing.cluster import LocalCluster
from tests.unit.rpc.programs import ARRIVALS, on_all, pass_on


@pytest.fixture
def cluster():
    ARRIVALS.clear()
    with LocalCluster(3) as cluster:
        yield cluster


def my_rank() -> int:
    return rpc.get_worker_info().id


def test_everybody_gets_what_everybody_brought(cluster) -> None:
    everything = {"worker0": 0, "worker1": 1, "worker2": 2}
    gathered = on_all(cluster, lambda: api._all_gather(my_rank()))
    assert gathered == dict.fromkeys(cluster.names, everything)


def test_a_part_of_the_workers_may_gather(cluster) -> None:
    def gather() -> object:
        return api._all_gather(my_rank(), {"worker1", "worker2"}) if my_rank() else None

    assert on_all(cluster, gather)["worker1"] == {"worker1": 1, "worker2": 2}


def test_who_is_no_member_may_not_gather(cluster) -> None:
    with pytest.raises(ValueError, match="'worker0' is not among the workers"):
        cluster.run(0, api._all_gather, None, {"worker1"})


def test_several_threads_of_each_worker_may_meet_at_once(cluster) -> None:
    done = []

    def meet_thrice() -> None:
        worker = rpc.get_worker_info().name

        def meet() -> None:
            with cluster[worker].active():
                api._barrier(cluster.names)
            done.append(worker)

        threads = [threading.Thread(target=meet) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    on_all(cluster, meet_thrice)
    assert sorted(done) == sorted(3 * cluster.names)


def test_the_leader_names_those_who_did_not_come_in_time(cluster) -> None:
    with pytest.raises(
        RpcTimeoutError,
        match=r"Followers \['worker1', 'worker2'\] timed out in _all_gather after 0.20 seconds",
    ):
        cluster.run(0, api._all_gather, None, None, 0.2)


def test_a_follower_gives_up_too(cluster) -> None:
    with pytest.raises(RuntimeError, match=r"Followers \['worker0'\] timed out"):
        cluster.run(1, api._all_gather, None, None, 0.2)


def test_a_leader_that_is_late_says_itself_who_is_missing(cluster, monkeypatch) -> None:
    barriers = cluster[0].service(Quiescence).barriers
    bring, gate = barriers.bring, threading.Event()

    def bring_late(barrier_id: str, name: str, obj: object) -> None:
        if name != "worker0":
            gate.wait(20)
        bring(barrier_id, name, obj)

    monkeypatch.setattr(barriers, "bring", bring_late)
    with pytest.raises(RpcTimeoutError, match="worker 'worker0' did not answer"):
        cluster.run(1, api._all_gather, None, None, 0.1)
    with pytest.raises(RpcTimeoutError, match="timed out in _all_gather after 0.20 seconds"):
        cluster.run(0, api._all_gather, None, None, 0.2)
    gate.set()


def test_what_runs_on_others_is_what_their_program_put_in_its_place() -> None:
    for function in (api._broadcast_to_followers, api._gather_to_leader):
        assert qualified_name(function) == f"lockstitch.rpc.api:{function.__name__}"


def test_an_error_of_those_who_are_told_is_the_leaders(cluster, monkeypatch) -> None:
    def fail(_meeting: str, _objects: object) -> None:
        raise RuntimeError("simulation")

    barriers = cluster[2].service(Quiescence).barriers
    monkeypatch.setattr(barriers, "announce", fail)
    results = on_all(cluster, lambda: api._all_gather(my_rank(), timeout=1.0))
    assert results["worker1"] == {"worker0": 0, "worker1": 1, "worker2": 2}
    assert "Followers ['worker2'] timed out in _all_gather" in str(results["worker0"])
    assert "simulation" in str(results["worker0"])


def test_waiting_for_all_workers_waits_for_calls_that_nobody_waits_for(cluster) -> None:
    cluster.run(0, pass_on, 10, cluster.names, "done")
    assert set(on_all(cluster, api._wait_all_workers).values()) == {None}
    assert ARRIVALS == ["done"]
    assert set(on_all(cluster, api._wait_all_workers).values()) == {None}
