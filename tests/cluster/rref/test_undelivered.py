"""References in messages that never leave, come too late, or cannot be read: none stays held."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch

from lockstitch.errors import LocalProtocolError, RpcTimeoutError, RRefError, SerializationError
from lockstitch.rref.rref import RRef
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.wire.frames import DEFAULT_LIMITS
from lockstitch.wire.messages import RemoteCall
from tests.cluster.rref.programs import (
    Gate,
    add,
    eventually,
    nothing_is_held,
    references,
    remote,
    wait_at_gate,
)


def keep_busy() -> None:
    assert Gate.event.wait(60)


class Unreadable:
    def __reduce__(self):
        return explode, ()


def explode() -> None:
    raise ImportError("not here")


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster
        Gate.open()


def nothing_is_under_way(cluster) -> bool:
    return all(references(worker).statistics().under_way == 0 for worker in cluster)


def test_in_arguments_that_cannot_be_pickled(cluster):
    rref = remote(cluster[1], add, 1, 2)
    with pytest.raises(SerializationError):
        cluster[0].agent.outgoing.call(cluster[2].id, add, (rref, threading.Lock()))
    assert nothing_is_under_way(cluster)
    del rref
    assert eventually(lambda: nothing_is_held(cluster))


def test_in_arguments_that_cannot_be_unpickled(cluster):
    rref = remote(cluster[1], add, 1, 2)
    with pytest.raises(SerializationError, match="not here"):
        cluster[0].agent.outgoing.call(cluster[2].id, add, (Unreadable(), rref))
    assert eventually(lambda: nothing_is_under_way(cluster))
    del rref
    assert eventually(lambda: nothing_is_held(cluster))


@pytest.mark.parametrize("wrap", [lambda *all_: all_, lambda *all_: ({"all": all_},)])
def test_in_arguments_that_are_too_long_for_a_frame(wrap):
    limits = dataclasses.replace(DEFAULT_LIMITS, bulk_bytes=100_000)
    with LocalCluster(3, options=AgentOptions(limits=limits)) as cluster, cluster[0].active():
        rref = remote(cluster[1], add, 1, 2)
        for kind in ("call", "call_async"):
            with pytest.raises(LocalProtocolError):
                getattr(cluster[0].agent.outgoing, kind)(
                    cluster[2].id, add, wrap(rref, torch.ones(50_000))
                )
        assert eventually(lambda: nothing_is_under_way(cluster))
        del rref
        assert eventually(lambda: nothing_is_held(cluster))


def test_a_value_is_made_although_its_user_has_given_up(cluster):
    rref = remote(cluster[1], add, 1, 2, timeout=1e-9)
    with pytest.raises(RuntimeError):
        rref._get_future().wait()
    assert eventually(lambda: references(cluster[1]).statistics().owned == 1)
    del rref
    assert eventually(lambda: nothing_is_held(cluster))


def test_in_a_call_of_remote_that_is_served_when_its_caller_is_done_with_it():
    options = AgentOptions(num_threads=1)
    with LocalCluster(2, options=options) as cluster, cluster[0].active():
        Gate.close()
        busy = cluster[0].agent.outgoing.call_async(cluster[1].id, keep_busy)
        rref = remote(cluster[1], add, RRef(1), 2, timeout=0.05)
        with pytest.raises(RuntimeError):
            rref._get_future().wait()
        del rref
        assert eventually(lambda: references(cluster[0]).statistics().used == 0)
        Gate.open()
        busy.wait()
        assert eventually(lambda: nothing_is_held(cluster)), [*map(references, cluster)]


class Held:
    """What worker 2 was given, and does not let go of."""

    rref = None


def hold(rref) -> None:
    Held.rref = rref


def ask_without_limit(method: str):
    rref = Held.rref
    return rref.to_here(timeout=0) if method == "to_here" else rref.rpc_sync(timeout=0).bit_length()


@pytest.mark.parametrize("method", ["to_here", "bit_length"])
def test_who_waits_without_limit_for_a_value_whose_call_is_lost_gets_an_error(method):
    faults = Faults()
    with LocalCluster(3, faults=faults) as cluster, cluster[0].active():
        faults.drop(RemoteCall)
        rref = remote(cluster[1], add, 1, 2, timeout=0.5)
        call = cluster[0].agent.outgoing.call_async
        cluster[0].agent.outgoing.call(cluster[2].id, hold, (rref,))
        asked = call(cluster[2].id, ask_without_limit, (method,), None, 0)
        with pytest.raises(RpcTimeoutError):
            rref._get_future().wait()
        assert not asked.done()
        del rref
        with pytest.raises(RRefError, match=r"never made: the call of rpc.remote .* got lost"):
            asked.wait()
        Held.rref = None
        assert eventually(lambda: nothing_is_held(cluster))


def test_in_an_answer_that_comes_too_late(cluster):
    Gate.close()
    rref = remote(cluster[1], add, 1, 2)
    future = cluster[0].agent.outgoing.call_async(cluster[2].id, wait_at_gate, (rref,), None, 0.05)
    with pytest.raises(RpcTimeoutError):
        future.wait()
    Gate.open()
    del rref, future
    assert eventually(lambda: nothing_is_held(cluster)), [*map(references, cluster)]
