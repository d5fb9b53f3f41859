from __future__ import annotations

import typing

import pytest

from lockstitch.errors import NotInitializedError, RRefError
from lockstitch.ids import WorkerId
from lockstitch.rref.finalizer_queue import FinalizerQueue
from lockstitch.rref.proxy import RRefProxy
from lockstitch.rref.rref import PyRRef, RRef
from tests.unit.wire.interrupts import interrupted

OWNER = WorkerId(1, 0)


@pytest.fixture
def owned(worker) -> RRef:
    return RRef._of_value(worker.references, worker.references.own([1]))


@pytest.fixture
def used(worker) -> RRef:
    return worker.references.create_remote(OWNER, len, ([],))


def test_there_is_one_class_of_references():
    assert PyRRef is RRef


def test_references_are_generic_in_the_type_of_their_value():
    assert typing.get_args(RRef[int]) == (int,)


def test_an_owner_has_the_value(owned, worker):
    assert owned.to_here() is owned.local_value()
    assert owned.is_owner()
    assert owned.confirmed_by_owner()
    assert owned.owner() == worker.info
    assert repr(owned) == "<RRef 0@worker0 · owner · ready>"


def test_a_user_has_not(used):
    assert not used.is_owner()
    assert not used.confirmed_by_owner()
    assert repr(used) == "<RRef 0@worker1 · user · pending>"
    with pytest.raises(RRefError, match=r"can't call localValue\(\) on user"):
        used.local_value()


def test_an_owner_completes_its_future_at_once(owned):
    assert owned._get_future().done()
    assert owned._get_future() is owned._get_future()


def test_a_user_completes_its_future_when_the_owner_has_answered(used, worker):
    assert not used._get_future().done()
    worker.agent.requests[0][2].set_result(None)
    assert used._get_future().done()


def test_the_type_of_a_value_that_is_here(owned):
    assert owned._get_type() is list
    assert owned._get_type(blocking=False).wait() is list


def test_a_user_must_say_in_which_context_to_run_backward(used):
    with pytest.raises(RRefError, match="User RRefs require 'dist_autograd_ctx_id' to be spec"):
        used.backward()


def test_whoever_takes_a_reference_for_its_value_is_told(owned):
    with pytest.raises(AttributeError, match=r"no attribute 'shape': .*to_here\(\) fetches"):
        _ = owned.shape
    assert not hasattr(owned, "__array__")


def test_no_pickler_but_ours_takes_a_reference(owned):
    with pytest.raises(RRefError, match="Can not pickle rref in python pickler"):
        owned.__reduce_ex__(5)


def test_proxies_come_in_three_kinds(owned):
    proxies = [owned.rpc_sync(), owned.rpc_async(), owned.remote(timeout=2)]
    assert all(type(proxy) is RRefProxy for proxy in proxies)
    assert repr(proxies[2]) == (
        "<RRefProxy of <RRef 0@worker0 · owner · ready> · remote · timeout 2>"
    )


def test_a_reference_needs_a_worker():
    with pytest.raises(NotInitializedError, match="Current RPC agent is not set!"):
        RRef(1)


def test_the_end_of_a_user_is_told_and_that_of_an_owner_is_not(worker):
    gone = []
    worker.references._finalizer_queue.let_go = gone.append
    owned = RRef._of_value(worker.references, worker.references.own(1))
    used = worker.references.create_remote(OWNER, len, ([],))
    fork = used._fork.fork
    del owned, used
    assert [each.fork for each in gone] == [fork]


def test_no_interrupt_strikes_the_end_of_a_user(worker):
    gone = []
    worker.references._finalizer_queue.let_go = gone.append
    used = worker.references.create_remote(OWNER, len, ([],))
    with interrupted(1, RRef.__module__, FinalizerQueue.__module__) as interrupter:
        del used
    assert interrupter.remaining == 1
    assert len(gone) == 1
