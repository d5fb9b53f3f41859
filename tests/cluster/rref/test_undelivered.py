"""References in messages that never leave, come too late, or cannot be read: none stays held."""

from __future__ import annotations

import threading

import pytest

from lockstitch.errors import RpcTimeoutError, SerializationError
from lockstitch.testing.cluster import LocalCluster
from tests.cluster.rref.programs import (
    Gate,
    add,
    eventually,
    nothing_is_held,
    references,
    remote,
    wait_at_gate,
)


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
        cluster[0].agent.call(cluster[2].id, add, (rref, threading.Lock()))
    assert nothing_is_under_way(cluster)
    del rref
    assert eventually(lambda: nothing_is_held(cluster))


def test_in_arguments_that_cannot_be_unpickled(cluster):
    rref = remote(cluster[1], add, 1, 2)
    with pytest.raises(SerializationError, match="not here"):
        cluster[0].agent.call(cluster[2].id, add, (Unreadable(), rref))
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


def test_in_an_answer_that_comes_too_late(cluster):
    Gate.close()
    rref = remote(cluster[1], add, 1, 2)
    future = cluster[0].agent.call_async(cluster[2].id, wait_at_gate, (rref,), None, 0.05)
    with pytest.raises(RpcTimeoutError):
        future.wait()
    Gate.open()
    del rref, future
    assert eventually(lambda: nothing_is_held(cluster)), [*map(references, cluster)]
