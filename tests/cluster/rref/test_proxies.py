"""Methods of a value, called through its reference in three ways."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstitch.attach.values import Question
from lockstitch.errors import RpcTimeoutError, SerializationError
from lockstitch.rref.rref import RRef
from lockstitch.runtime.reports import report_workers
from lockstitch.testing.cluster import LocalCluster
from tests.cluster.rref.programs import Counter, Gate, eventually, remote, wait_at_gate


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster
        Gate.open()


def call(rref, kind, name, *args, timeout=-1.0):
    """The result of a method, whichever way it is called."""
    result = getattr(getattr(rref, kind)(timeout), name)(*args)
    if kind == "rpc_async":
        return result.wait()
    return result.to_here() if kind == "remote" else result


WAYS = pytest.mark.parametrize("kind", ["rpc_sync", "rpc_async", "remote"])
OWNERS = pytest.mark.parametrize("owner", [0, 1], ids=["oneself", "another"])


@WAYS
@OWNERS
def test_methods_run_on_the_value_itself(cluster, kind, owner):
    rref = remote(cluster[owner], Counter, 7)
    assert call(rref, kind, "add", 3) == 10
    assert call(rref, kind, "get") == 10
    assert call(rref, kind, "double", 4) == 8
    assert call(rref, kind, "name") == "Counter"


@WAYS
def test_a_method_costs_one_request_and_no_message_about_the_reference(cluster, kind):
    rref = remote(cluster[1], Counter, 7)
    assert call(rref, kind, "get") == 7  # asks for the type, where that is needed
    sent: list[object] = []
    agents = [cluster[number].agent for number in (0, 1)]
    for agent in agents:
        agent.core.send_filter = lambda _to, message, send: (sent.append(message), send(message))
    try:
        result = getattr(rref, kind)().add(1)
        if kind == "rpc_async":
            result.wait()
        elif kind == "remote":
            result._get_future().wait()
    finally:
        for agent in agents:
            agent.core.send_filter = None
    names = [type(message).__name__ for message in sent]
    requests = [name for name in names if name.endswith("Call")]
    assert requests == ["RemoteCall" if kind == "remote" else "Call"]
    assert [name for name in names if name.startswith("Child")] == []


def test_who_looks_on_is_told_which_method_is_called_and_runs(cluster):
    counter = remote(cluster[1], Counter, 7)

    def wait() -> None:
        with cluster[0].active():
            call(counter, "rpc_sync", "slowly")

    Gate.close()
    caller = threading.Thread(target=wait)
    caller.start()

    def told(number: int, what: str) -> set[str]:
        return {
            each.function for each in getattr(report_workers(Question(waits=True))[number], what)
        }

    assert eventually(lambda: told(1, "serving") == {"the method slowly"})
    assert told(0, "calls") == {"the method slowly"}
    Gate.open()
    caller.join()


@WAYS
def test_methods_of_a_value_that_a_program_owns(cluster, kind):
    assert call(RRef(Counter(1)), kind, "add", 1) == 2


@WAYS
def test_async_execution_methods_give_what_their_future_holds(cluster, kind):
    rref = remote(cluster[1], Counter, 7)
    assert call(rref, kind, "later", 1) == 8


@WAYS
def test_exceptions_keep_their_type(cluster, kind):
    rref = remote(cluster[1], Counter, 7)
    with pytest.raises(LookupError, match="no luck"):
        call(rref, kind, "fail")


def test_a_missing_name_is_an_attribute_error_where_each_way_tells_it(cluster):
    rref = remote(cluster[1], Counter, 7)
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        rref.rpc_sync().missing()
    future = rref.rpc_async().missing()
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        future.wait()
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        rref.remote().missing()


@WAYS
def test_what_is_no_method_is_named_with_advice(cluster, kind):
    rref = remote(cluster[1], Counter, 7)
    with pytest.raises(
        TypeError,
        match=r"'str' object is not callable: 'kind' of Counter .*\.local_value\(\)\.kind",
    ) as caught:
        call(rref, kind, "kind")
    assert "proxy.py" not in str(caught.value.__cause__)


def test_attributes_of_the_instance_alone_are_no_methods(cluster):
    rref = remote(cluster[1], Counter, 7)
    with pytest.raises(AttributeError, match="has no attribute 'value'"):
        rref.rpc_sync().value()


def test_a_proxy_can_be_used_again(cluster):
    proxy = remote(cluster[1], torch.ones, 2).rpc_sync()
    torch.testing.assert_close(proxy.add(1), torch.full((2,), 2.0))
    assert proxy.size() == torch.Size([2])
    assert proxy.add(1, alpha=3).tolist() == [4, 4]


@WAYS
def test_the_timeout_covers_the_making_of_the_value(cluster, kind):
    Gate.close()
    slow = remote(cluster[1], wait_at_gate, Counter(7))
    with pytest.raises(RpcTimeoutError, match="RPC ran for more than"):
        call(slow, kind, "get", timeout=0.05)
    Gate.open()
    assert call(slow, kind, "get") == 7


def test_the_timeout_covers_the_method(cluster):
    rref = remote(cluster[1], Counter, 7)
    rref.to_here()
    Gate.close()
    with pytest.raises(RpcTimeoutError, match="RPC ran for more than"):
        rref.rpc_sync(0.05).slowly()
    with pytest.raises(RpcTimeoutError, match="RPC ran for more than"):
        rref.rpc_async(0.05).slowly().wait()
    with pytest.raises(RpcTimeoutError, match="RPC ran for more than"):
        rref.remote(0.05).slowly()._get_future().wait()


# ---------------------------------------------------------------- the type of the value


@OWNERS
def test_the_type_is_asked_once(cluster, owner):
    rref = remote(cluster[owner], Counter, 7)
    first = rref._get_type(blocking=False)
    assert first.wait() is Counter
    assert rref._get_type(blocking=False) is first
    assert rref._get_type() is Counter


def test_a_type_that_could_not_be_had_is_asked_again(cluster):
    Gate.close()
    rref = remote(cluster[1], wait_at_gate, 7)
    with pytest.raises(RpcTimeoutError):
        rref._get_type(0.05)
    Gate.open()
    assert rref._get_type() is int


def test_asking_for_the_type_holds_no_thread_of_the_owner(cluster):
    Gate.close()
    rref = remote(cluster[1], wait_at_gate, 7)
    with cluster[1].active():
        mine = remote(cluster[1], wait_at_gate, 7)
    futures = [rref._get_type(blocking=False), mine._get_type(blocking=False)]
    assert not any(future.done() for future in futures)
    Gate.open()
    assert [future.wait() for future in futures] == [int, int]


def test_the_first_question_for_the_type_shows_in_a_profile(cluster):
    rref = remote(cluster[1], Counter, 7)
    with torch.autograd.profiler.profile() as profile:
        rref._get_type()
    names = [event.name for event in profile.function_events]
    assert "rpc_async#_rref_typeof_on_owner(worker0 -> worker1)" in names


@WAYS
@OWNERS
def test_an_argument_that_cannot_be_sent_is_named_as_the_user_wrote_it(cluster, kind, owner):
    rref = remote(cluster[owner], Counter, 7)
    with pytest.raises(
        SerializationError, match=r"a call of the method add to .* args\[0\] is <unl"
    ):
        call(rref, kind, "add", threading.Lock())
    assert call(rref, kind, "get") == 7
