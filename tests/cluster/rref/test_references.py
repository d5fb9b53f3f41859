"""References between workers of one process: values, sharing, confirmation, letting go."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch

from lockstitch.errors import RRefError
from lockstitch.rref.rref import PyRRef, RRef
from lockstitch.testing.cluster import LocalCluster
from tests.cluster.rref.programs import (
    Counter,
    Gate,
    add,
    eventually,
    fail,
    fail_badly,
    forget,
    give_back,
    is_confirmed,
    is_owner,
    keep,
    local_value_of,
    make_here,
    nothing_is_held,
    pass_on,
    references,
    remote,
    value_of,
    wait_at_gate,
)


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster
        forget()
        Gate.open()


# ---------------------------------------------------------------- values


def test_remote_returns_at_once_and_to_here_waits_for_the_value(cluster):
    Gate.close()
    rref = remote(cluster[1], wait_at_gate, 7)
    assert not rref._get_future().done()
    Gate.open()
    assert rref.to_here() == 7
    assert rref._get_future().wait() is None


def test_a_fetch_that_waits_for_its_value_holds_no_thread(cluster):
    Gate.close()
    rref = remote(cluster[1], wait_at_gate, 7)
    owner = cluster[1].agent
    running = owner.thread_pool.running
    fetches = [
        cluster[0].agent.outgoing.call_async(cluster[2].id, value_of, (rref,)) for _ in range(20)
    ]
    assert eventually(lambda: len(owner.running_requests) == 21)
    assert owner.thread_pool.running <= running + 1
    Gate.open()
    assert [fetch.wait() for fetch in fetches] == [7] * 20


def test_a_tensor_arrives_as_a_copy_and_the_owner_has_the_value_itself(cluster):
    rref = remote(cluster[1], torch.add, torch.ones(2), 1)
    torch.testing.assert_close(rref.to_here(), torch.full((2,), 2.0))
    mine = RRef([1, 2])
    assert mine.to_here() is mine.local_value()


def test_remote_to_oneself_gives_an_owner(cluster):
    rref = remote(cluster[0], add, 1, 2)
    assert rref.is_owner()
    assert rref.owner() == cluster[0].info
    assert rref.local_value() == 3
    assert str(rref) == "OwnerRRef(GloballyUniqueId(created_on=0, local_id=0))"


def test_an_exception_of_the_function_keeps_its_type(cluster):
    rref = remote(cluster[1], fail)
    for _ in range(2):
        with pytest.raises(KeyError, match="on purpose"):
            rref.to_here()
    assert rref._get_future().wait() is None
    with pytest.raises(KeyError, match="on purpose"):
        remote(cluster[0], fail).to_here()


def test_an_exit_of_the_function_does_not_end_whoever_looks(cluster):
    for worker in (cluster[0], cluster[1]):
        with pytest.raises(RuntimeError, match="SystemExit"):
            remote(worker, fail_badly).to_here()


def test_unpicklable_values_fail_the_fetch_and_stay_usable_at_home(cluster):
    rref = remote(cluster[1], torch.futures.Future)
    with pytest.raises(RuntimeError, match=r"Can not pickle torch\.futures\.Future"):
        rref.to_here()
    assert rref.rpc_sync().done() is False


# ---------------------------------------------------------------- who and what


def test_owner_name_and_kind(cluster):
    rref = remote(cluster[1], add, 1, 2)
    assert (rref.owner(), rref.owner_name(), rref.is_owner()) == (
        cluster[1].info,
        "worker1",
        False,
    )
    assert type(rref) is PyRRef
    assert isinstance(RRef[int](3), RRef)


def test_ids_begin_at_zero_and_remote_takes_two(cluster):
    assert str(RRef(1)) == "OwnerRRef(GloballyUniqueId(created_on=0, local_id=0))"
    assert str(remote(cluster[1], add, 1, 2)) == (
        "UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=1), "
        "ForkId = GloballyUniqueId(created_on=0, local_id=2))"
    )


def test_repr_tells_owner_and_condition(cluster):
    rref = remote(cluster[1], add, 1, 2)
    rref.to_here()
    assert repr(rref) == "<RRef 0@worker1 · user · confirmed>"
    assert repr(RRef(3)) == "<RRef 2@worker0 · owner · ready>"


def test_local_value_on_a_user_says_where_to_ask(cluster):
    rref = remote(cluster[1], add, 1, 2)
    with pytest.raises(RuntimeError) as error:
        rref.local_value()
    assert str(error.value) == (
        "For UserRRef(rref_id=GloballyUniqueId(created_on=0, local_id=0), "
        "fork_id=GloballyUniqueId(created_on=0, local_id=1)), can't call localValue() on user "
        "WorkerInfo(id=0, name=worker0). Call it on owner WorkerInfo(id=1, name=worker1)"
    )


@pytest.mark.parametrize("pickler", [pickle.dumps, copy.copy, copy.deepcopy])
def test_other_picklers_are_refused(cluster, pickler):
    for rref in (RRef(3), remote(cluster[1], add, 1, 2)):
        with pytest.raises(RuntimeError, match="Can not pickle rref in python pickler"):
            pickler(rref)


# ---------------------------------------------------------------- sharing


def test_references_travel_as_arguments_and_results(cluster):
    call = cluster[0].agent.outgoing.call
    rref = remote(cluster[1], add, 1, 2)
    assert call(cluster[2].id, value_of, (rref,)) == 3
    assert call(cluster[2].id, give_back, (rref,)).to_here() == 3
    assert call(cluster[1].id, make_here, (5,)).to_here() == 5
    assert remote(cluster[2], value_of, rref).to_here() == 3
    assert remote(cluster[2], give_back, rref).to_here().to_here() == 3


def test_a_reference_that_comes_home_is_the_owners(cluster):
    call = cluster[0].agent.outgoing.call
    rref = remote(cluster[1], Counter, 1)
    assert call(cluster[1].id, is_owner, (rref,))
    assert call(cluster[1].id, local_value_of, (rref,)).value == 1
    mine = RRef([1])
    back = call(cluster[2].id, give_back, (mine,))
    assert back.is_owner()
    assert back.local_value() is mine.local_value()


def test_a_reference_sent_to_oneself_is_the_same_value(cluster):
    mine = RRef([1])
    back = cluster[0].agent.outgoing.call(cluster[0].id, give_back, (mine,))
    assert back.local_value() is mine.local_value()


def test_functions_start_when_their_references_are_confirmed(cluster):
    rref = remote(cluster[1], add, 1, 2)
    for _ in range(20):
        assert cluster[0].agent.outgoing.call(cluster[2].id, is_confirmed, (rref,))
        assert remote(cluster[2], is_confirmed, rref).to_here()


def test_a_fork_of_a_fork_outlives_both_parents(cluster):
    rref = remote(cluster[1], add, 1, 2)
    future = cluster[0].agent.outgoing.call_async(cluster[2].id, pass_on, (rref, cluster[0].id))
    del rref
    assert future.wait() == 3


def test_forks_cross_as_plain_values_too(cluster):
    rref = remote(cluster[1], add, 1, 2)
    state = rref._serialize()
    with cluster[2].active():
        assert RRef._deserialize(state).to_here() == 3


# ---------------------------------------------------------------- letting go


def test_nothing_is_held_when_everything_was_dropped(cluster):
    rrefs = [remote(cluster[1 + n % 2], add, n, 1) for n in range(40)]
    call = cluster[0].agent.outgoing.call
    assert [call(cluster[2].id, value_of, (rref,)) for rref in rrefs[:5]] == [1, 2, 3, 4, 5]
    del rrefs
    assert eventually(lambda: nothing_is_held(cluster)), [*map(references, cluster)]


def test_a_value_counts_as_owned_from_sharing_until_the_last_user_drops_it(cluster):
    mine = RRef(3)
    owner = references(cluster[0])
    assert owner.statistics().owned == 0
    cluster[0].agent.outgoing.call(cluster[1].id, keep, (mine,))
    assert owner.debug_info()["num_owner_rrefs"] == "1"
    assert owner.debug_info()["num_forks"] == "1"
    cluster[0].agent.outgoing.call(cluster[1].id, forget)
    assert eventually(lambda: owner.statistics().owned == 0)
    assert mine.local_value() == 3
    assert cluster[0].agent.outgoing.call(cluster[1].id, value_of, (mine,)) == 3


def test_a_dropped_remote_is_deleted_when_its_call_is_answered(cluster):
    Gate.close()
    remote(cluster[1], wait_at_gate, 1)
    Gate.open()
    assert eventually(lambda: nothing_is_held(cluster))


def test_deleting_all_users_reaches_those_in_cycles(cluster):
    ring = Counter(1)
    ring.itself = ring
    ring.rref = remote(cluster[1], add, 1, 2)
    rref = ring.rref
    mine = RRef(1)
    cluster[0].agent.outgoing.call(cluster[1].id, keep, (mine,))
    forget()
    gc.collect()
    assert references(cluster[0]).delete_all_users(10)
    assert references(cluster[1]).statistics().owned == 0
    with pytest.raises(RRefError, match=r"Cannot call to_here\(\) on it after deletion\."):
        rref.to_here()
    with pytest.raises(RRefError, match=r"Cannot call fork an UserRRef after deletion\."):
        rref._serialize()
    with pytest.raises(RRefError, match=r"Cannot call fork an UserRRef after deletion\."):
        cluster[0].agent.outgoing.call(cluster[2].id, value_of, (rref,))


def test_deleting_all_users_says_when_others_do_not_let_go(cluster):
    mine = RRef(1)
    cluster[0].agent.outgoing.call(cluster[1].id, keep, (mine,))
    assert not references(cluster[0]).delete_all_users(0.05)


def test_leaks_are_told_by_reference_and_fork(cluster):
    mine = RRef(1)
    references(cluster[0]).check_leaks()
    cluster[0].agent.outgoing.call(cluster[1].id, keep, (mine,))
    with pytest.raises(RRefError, match=r"Leaking RRef GloballyUniqueId\(created_on=0, local_id=0"):
        references(cluster[0]).check_leaks()


def test_deleted_references_say_so_after_the_worker_is_closed():
    with LocalCluster(2) as cluster, cluster[0].active():
        rref = remote(cluster[1], add, 1, 2)
        assert references(cluster[0]).delete_all_users(10)
    with pytest.raises(RRefError, match=r"Cannot call to_here\(\) on it after deletion\."):
        rref.to_here()


class Lazy:
    """Keeps its value here, and makes a reference to it when it is first sent."""

    def __init__(self, value):
        self.value = value

    def __getstate__(self):
        if not isinstance(self.value, PyRRef):
            self.value = make_here(self.value)
        return {"value": self.value}


def owner_and_value(lazy):
    return lazy.value.owner_name(), lazy.value.to_here()


def test_a_reference_may_be_made_while_an_argument_is_pickled(cluster):
    lazy = Lazy([1])
    for _ in range(2):
        assert cluster[0].agent.outgoing.call(cluster[1].id, owner_and_value, (lazy,)) == (
            "worker0",
            [1],
        )
    assert lazy.value.local_value() == [1]
    del lazy
    assert eventually(lambda: nothing_is_held(cluster))
