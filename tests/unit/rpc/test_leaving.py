"""However a worker leaves, nothing of it is left."""

from __future__ import annotations

import threading

import pytest

from lockstitch import rpc
from lockstitch.errors import RpcTimeoutError
from lockstitch.rpc import leaving
from lockstitch.rpc.membership import Membership, StaticMembership
from lockstitch.runtime.worker import current_worker
from lockstitch.testing.cluster import LocalCluster
from tests.unit.rpc.programs import AT_GATE, GATE, add, close_gate, on_all, wait_at_gate


@pytest.fixture
def cluster():
    close_gate()
    with LocalCluster(3) as cluster:
        yield cluster
        GATE.set()


def test_a_static_group_leaves_together(cluster) -> None:
    assert leaving.leaves_together(cluster[0])
    order = []

    def leave() -> None:
        worker = current_worker()
        leaving.part(worker, 10)
        order.append(worker.name)
        leaving.finish(worker, ignore_leaks=False)

    assert set(on_all(cluster, leave).values()) == {None}
    assert order[-1] == "worker0"  # who led the meeting goes last


class Alone(Membership):
    """As in a dynamic group; the real one has tests of its own."""

    is_static = False

    def leave(self, timeout_seconds: float) -> None:
        pass


def test_a_member_of_a_dynamic_group_leaves_alone(cluster) -> None:
    del cluster[1]._services[StaticMembership]
    cluster[1].plug(Alone(cluster[1]))
    assert not leaving.leaves_together(cluster[1])
    cluster.run(1, rpc.shutdown)
    with pytest.raises(RuntimeError, match="it has shut down|it cannot be reached"):
        cluster.run(0, rpc.rpc_sync, "worker1", add, (1, 2))
    assert cluster.run(0, rpc.rpc_sync, "worker2", add, (1, 2)) == 3


def test_it_waits_for_its_own_work_only(cluster) -> None:
    cluster.run(0, rpc.rpc_async, "worker1", wait_at_gate)
    assert AT_GATE.wait(10)
    leaving.wait_for_own_work(cluster[2], 1)
    with pytest.raises(RpcTimeoutError, match="'worker1' had not come to rest"):
        leaving.wait_for_own_work(cluster[1], 0.05)


def test_who_goes_because_of_an_error_first_answers_what_is_almost_done(cluster) -> None:
    answer = cluster.run(0, rpc.rpc_async, "worker1", wait_at_gate)
    assert AT_GATE.wait(10)
    threading.Timer(0.05, GATE.set).start()
    leaving.answer_what_is_served(cluster[1], 10)
    leaving.finish(cluster[1], ignore_leaks=True)
    assert answer.wait() == "through"


def test_but_waits_for_nothing_that_lasts(cluster) -> None:
    cluster.run(0, rpc.rpc_async, "worker1", wait_at_gate)
    assert AT_GATE.wait(10)
    leaving.answer_what_is_served(cluster[1], 0.05)
    GATE.set()


def test_leaks_are_told_of_after_the_end(cluster) -> None:
    kept = cluster.run(0, rpc.remote, "worker1", add, (1, 2))
    cluster.run(0, kept.to_here)
    with pytest.raises(RuntimeError, match="Leaking RRef"):
        leaving.finish(cluster[1], ignore_leaks=False)
    with pytest.raises(RuntimeError):
        cluster.run(0, rpc.rpc_sync, "worker1", add, (1, 2))
    leaving.finish(cluster[2], ignore_leaks=True)


def test_who_is_kept_from_leaving_goes_after_its_time_and_says_who_is_missing(cluster) -> None:
    cluster.run(0, rpc.rpc_async, "worker1", wait_at_gate)
    assert AT_GATE.wait(60)
    stuck = threading.Event()
    with pytest.raises(RpcTimeoutError, match=r"not part within 0.01 s: it waits for worker1"):
        leaving.keep_to(cluster[0], 0.01, lambda: float(stuck.wait(60)))
    stuck.set()


def test_what_goes_wrong_while_leaving_is_raised_where_it_was_asked_for(cluster) -> None:
    def leave() -> None:
        raise KeyError(current_worker().name)

    with cluster[2].active(), pytest.raises(KeyError, match="worker2"):
        leaving.keep_to(cluster[2], 60, leave)
    with pytest.raises(KeyError, match="worker2"):
        cluster.run(2, leaving.keep_to, cluster[2], 0, leave)
