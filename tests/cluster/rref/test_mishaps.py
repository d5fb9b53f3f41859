"""What is lost, late, repeated or dead: the guarantees of `rref.lifetime` with real workers."""

from __future__ import annotations

import gc
import itertools

import pytest

from lockstitch.errors import OwnerDiedError, RpcTimeoutError, RRefError
from lockstitch.rref.dead_workers import GRACE_SECONDS
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.wire.messages import (
    ChildAccept,
    ChildNoted,
    DeletionsNoted,
    ForkAccept,
    ForkRequest,
    ForksDeleted,
    RemoteCall,
)
from tests.cluster.rref.programs import (
    KEPT,
    Gate,
    add,
    eventually,
    forget,
    is_confirmed,
    keep,
    nothing_is_held,
    references,
    remote,
    value_of,
    wait_at_gate,
)

CONTROL = [ForkRequest, ForkAccept, ChildAccept, ChildNoted, ForksDeleted, DeletionsNoted]
TIMED_OUT = "RRef creation via rpc.remote\\(\\) timed out, and it is possible that the RRef"


@pytest.fixture(autouse=True)
def clean():
    yield
    Gate.open()
    forget()


def share_and_drop(cluster):
    """One reference from worker0 to worker1's value, passed on to worker2, then dropped by all."""
    with cluster[0].active():
        rref = remote(cluster[1], add, 1, 2)
        assert cluster[0].agent.outgoing.call(cluster[2].id, value_of, (rref,)) == 3
        assert cluster[0].agent.outgoing.call(cluster[2].id, is_confirmed, (rref,))


# ---------------------------------------------------------------- G1, G2 under a bad network


@pytest.mark.parametrize("message", CONTROL, ids=lambda cls: cls.__name__)
def test_each_control_message_may_be_lost(message):
    with LocalCluster(3, faults=Faults().drop(message)) as cluster:
        share_and_drop(cluster)
        assert eventually(lambda: nothing_is_held(cluster)), [*map(references, cluster)]


@pytest.mark.parametrize("message", CONTROL, ids=lambda cls: cls.__name__)
def test_each_control_message_may_come_twice(message):
    with LocalCluster(3, faults=Faults().repeat(message, times=None)) as cluster:
        share_and_drop(cluster)
        assert eventually(lambda: nothing_is_held(cluster)), [*map(references, cluster)]


@pytest.mark.parametrize("message", CONTROL, ids=lambda cls: cls.__name__)
def test_each_control_message_may_be_late(message):
    with LocalCluster(3, faults=Faults().delay(message, by=0.3)) as cluster:
        share_and_drop(cluster)
        assert eventually(lambda: nothing_is_held(cluster)), [*map(references, cluster)]


def test_g2_a_parent_that_is_dropped_early_keeps_the_value_for_its_child():
    faults = Faults().drop(ForkRequest)
    with LocalCluster(3, faults=faults) as cluster, cluster[0].active():
        rref = remote(cluster[1], add, 1, 2)
        future = cluster[0].agent.outgoing.call_async(cluster[2].id, value_of, (rref,))
        del rref
        gc.collect()
        assert future.wait() == 3
        assert eventually(lambda: nothing_is_held(cluster))


# ---------------------------------------------------------------- remote() that gets no answer


def test_a_reference_whose_making_timed_out_cannot_be_used():
    with LocalCluster(3) as cluster, cluster[0].active():
        Gate.close()
        rref = remote(cluster[1], wait_at_gate, 1, timeout=0.05)
        with pytest.raises(RpcTimeoutError, match="RPC ran for more than"):
            rref._get_future().wait()
        assert eventually(lambda: references(cluster[0]).statistics().creating == 0)
        owned = references(cluster[1]).statistics()
        assert (owned.owned, owned.forks) == (1, 1), "the call may still succeed on the owner"
        with pytest.raises(RRefError, match=TIMED_OUT):
            rref.to_here()
        with pytest.raises(RRefError, match=TIMED_OUT):
            rref._serialize()
        with pytest.raises(RRefError, match=TIMED_OUT):
            cluster[0].agent.outgoing.call(cluster[2].id, value_of, (rref,))
        Gate.open()
        del rref
        assert eventually(lambda: nothing_is_held(cluster))


def test_a_lost_call_times_out_and_leaves_nothing():
    faults = Faults().drop(RemoteCall)
    with LocalCluster(2, faults=faults) as cluster, cluster[0].active():
        rref = remote(cluster[1], add, 1, 2, timeout=0.1)
        with pytest.raises(RpcTimeoutError):
            rref._get_future().wait()
        assert eventually(lambda: references(cluster[0]).statistics().creating == 0)
        with pytest.raises(RRefError, match=TIMED_OUT):
            rref.to_here()
        del rref
        assert eventually(lambda: nothing_is_held(cluster))


def test_a_reference_to_oneself_that_timed_out_cannot_be_used():
    with LocalCluster(1) as cluster, cluster[0].active():
        Gate.close()
        rref = remote(cluster[0], wait_at_gate, 1, timeout=0.05)
        with pytest.raises(RpcTimeoutError):
            rref._get_future().wait()
        assert eventually(lambda: references(cluster[0]).statistics().creating == 0)
        for use in (rref.to_here, rref._serialize):
            with pytest.raises(RRefError, match=TIMED_OUT):
                use()
        Gate.open()


def test_to_here_may_time_out_and_be_tried_again():
    with LocalCluster(2) as cluster, cluster[0].active():
        Gate.close()
        for owner in cluster:
            rref = remote(owner, wait_at_gate, 1)
            with pytest.raises(RpcTimeoutError, match="RPC ran for more than"):
                rref.to_here(0.05)
            KEPT.append(rref)
        Gate.open()
        assert [rref.to_here() for rref in KEPT] == [1, 1]


# ---------------------------------------------------------------- deaths


def test_g4_references_to_a_dead_owner_say_so():
    with LocalCluster(3) as cluster, cluster[0].active():
        rref = remote(cluster[1], add, 1, 2)
        assert rref.to_here() == 3
        cluster.kill("worker1")
        for use in (rref.to_here, rref._serialize):
            with pytest.raises(OwnerDiedError, match="worker1"):
                eventually(lambda use=use: use() and False)
        assert repr(rref) == "<RRef 0@worker1 · user · orphaned>"
        assert eventually(lambda: references(cluster[0]).statistics().used == 0)


def test_a_fetch_that_waits_ends_when_the_owner_dies():
    with LocalCluster(2) as cluster, cluster[0].active():
        Gate.close()
        rref = remote(cluster[1], wait_at_gate, 1)
        future = cluster[0].agent.outgoing.call_async(cluster[0].id, value_of, (rref,))
        assert eventually(lambda: len(cluster[1].agent.running_requests) == 2)
        cluster.kill("worker1")
        with pytest.raises(OwnerDiedError, match="worker1"):
            future.wait()
        Gate.open()


def test_remote_on_a_dead_worker_gives_an_orphan():
    with LocalCluster(2) as cluster, cluster[0].active():
        assert remote(cluster[1], add, 1, 2).to_here() == 3
        cluster.kill("worker1")
        assert eventually(lambda: cluster[0].agent.peers.is_lost(cluster[1].id))
        with pytest.raises(OwnerDiedError, match="worker1"):
            remote(cluster[1], add, 1, 2).to_here()
        assert eventually(lambda: references(cluster[0]).statistics().used == 0)


def test_g3_the_forks_of_a_dead_user_are_reclaimed():
    with LocalCluster(3) as cluster, cluster[0].active():
        rref = remote(cluster[1], add, 1, 2)
        cluster[0].agent.outgoing.call(cluster[2].id, keep, (rref,))
        owner = references(cluster[1])
        assert owner.statistics().forks == 2
        cluster.kill("worker2")
        cluster.kill("worker0")
        lost = cluster[1].agent.peers.is_lost
        assert eventually(lambda: lost(cluster[0].id) and lost(cluster[2].id))
        later = itertools.count(cluster[1].clock.now(), GRACE_SECONDS)
        assert eventually(lambda: owner.tick(next(later)) or owner.statistics().owned == 0)
