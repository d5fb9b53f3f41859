"""The face of calls, on workers of one process."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
import torch

from lockstitch import rpc
from lockstitch.errors import NotInitializedError, PeerDiedError, RpcError, RpcTimeoutError
from lockstitch.rpc import api
from lockstitch.runtime.worker import PROCESS
from lockstitch.testing.cluster import LocalCluster
from tests.unit.rpc.programs import (
    GATE,
    add,
    add_elsewhere,
    close_gate,
    fail_with,
    name_of_worker,
    on_all,
    wait_at_gate,
)

ONES = torch.ones(2)


@pytest.fixture
def cluster():
    close_gate()
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster
        GATE.set()


def call(way: str, to: object, function: object, *args: object, **options: object) -> object:
    """What a function returns, whichever way it is called."""
    result = getattr(rpc, way)(to, function, args, **options)
    if way == "rpc_async":
        return result.wait()
    return result.to_here() if way == "remote" else result


WAYS = pytest.mark.parametrize("way", ["rpc_sync", "rpc_async", "remote"])


@WAYS
@pytest.mark.parametrize("to", ["worker1", 1, rpc.WorkerInfo("worker1", 1)])
def test_a_worker_is_named_by_name_rank_or_info(cluster, way, to) -> None:
    assert call(way, to, name_of_worker) == "worker1"


@WAYS
def test_arguments_are_a_sequence_and_keywords(cluster, way) -> None:
    assert call(way, "worker1", add, 1, 2, kwargs={"c": 3}) == 6
    assert rpc.rpc_sync("worker1", add, [1, 2]) == 3
    assert rpc.rpc_sync("worker1", add, kwargs={"a": 1, "b": 2}) == 3


@WAYS
def test_a_worker_may_call_itself(cluster, way) -> None:
    assert call(way, "worker0", name_of_worker) == "worker0"


@WAYS
def test_the_value_of_an_async_execution_function_is_its_futures(cluster, way) -> None:
    assert torch.equal(call(way, "worker1", add_elsewhere, "worker2", ONES, ONES), 2 * ONES)


@WAYS
def test_an_exception_keeps_its_type(cluster, way) -> None:
    with pytest.raises(KeyError, match="gone"):
        call(way, "worker1", fail_with, "gone")


def test_a_future_can_be_waited_for_twice_and_awaited(cluster) -> None:
    future = rpc.rpc_async("worker1", add, (1, 2))
    assert isinstance(future, torch._C.Future)
    assert [future.wait(), future.wait()] == [3, 3]

    async def await_it() -> int:
        return await rpc.rpc_async("worker1", add, (3, 4))

    with cluster[0].active():
        assert asyncio.run(await_it()) == 7


@pytest.mark.parametrize(
    ("to", "error", "words"),
    [
        ("nobody", RpcError, "could not find destination 'nobody'"),
        (7, RpcError, "could not find destination 7"),
        (1.5, ValueError, "1.5"),
    ],
)
def test_who_is_unknown_cannot_be_called(cluster, to, error, words) -> None:
    for function in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        with pytest.raises(error, match=words):
            function(to, add, (1, 2))
    with pytest.raises(error, match=words):
        rpc.get_worker_info(to)


def test_a_single_argument_without_its_comma_is_explained(cluster) -> None:
    with pytest.raises(TypeError, match=r"not 3: a single argument needs a comma"):
        rpc.rpc_sync("worker1", abs, args=(3))  # type: ignore[call-overload]
    for single in ("text", b"bytes", torch.ones(2), torch.ones(1), {"x": 1}):
        with pytest.raises(TypeError, match="a single argument needs a comma"):
            rpc.rpc_sync("worker1", abs, args=single)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"kwargs must be a dict .*, not \[3\]"):
        rpc.rpc_sync("worker1", abs, kwargs=[3])  # type: ignore[call-overload]
    assert rpc.rpc_sync("worker1", add, args=[1, 2]) == 3


def test_what_is_not_callable_cannot_be_called(cluster) -> None:
    with pytest.raises(TypeError, match=r"function should be callable\. This is a str"):
        rpc.rpc_sync("worker1", "add", (1, 2))
    for call_it in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        with pytest.raises(TypeError, match=r"This is a int: .* without calling it here"):
            call_it("worker1", add(1, 2))


def test_the_default_timeout_holds_for_calls_made_later(cluster) -> None:
    assert rpc.get_rpc_timeout() == 60.0
    earlier = rpc.rpc_async("worker1", wait_at_gate)
    rpc._set_rpc_timeout(0.05)
    with pytest.raises(RpcTimeoutError):
        rpc.rpc_sync("worker1", wait_at_gate)
    rpc._set_rpc_timeout(0)
    GATE.set()
    assert rpc.rpc_sync("worker1", wait_at_gate) == "through"
    assert earlier.wait() == "through"


def test_a_dead_worker_fails_the_future_and_not_the_call(cluster) -> None:
    rpc.rpc_sync("worker1", add, (1, 2))
    cluster.kill("worker1")
    future = rpc.rpc_async("worker1", add, (1, 2))
    with pytest.raises(PeerDiedError, match="worker1"):
        future.wait()


def test_what_cannot_be_sent_fails_the_call_itself(cluster) -> None:
    for function in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        with pytest.raises(RuntimeError, match="Can not pickle torch.futures.Future"):
            function("worker1", add, (torch.futures.Future(), 1))


def test_worker_infos(cluster) -> None:
    assert rpc.get_worker_info() == rpc.WorkerInfo("worker0", 0)
    assert rpc.get_worker_info("worker1").id == 1
    assert rpc.get_worker_info(2).name == "worker2"


def test_without_a_worker_nothing_can_be_called(monkeypatch) -> None:
    monkeypatch.setattr(PROCESS, "has_ended", False)
    for function in (rpc.get_worker_info, rpc.get_rpc_timeout, rpc.shutdown):
        with pytest.raises(NotInitializedError, match="^RPC has not been initialized"):
            function()
    for function in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        with pytest.raises(NotInitializedError, match="^RPC has not been initialized"):
            function("worker1", add, (1, 2))


def test_a_programs_own_pickler_serializes_its_calls(cluster) -> None:
    class Counting:
        calls = 0

        def serialize(self, obj: object) -> object:
            self.calls += 1
            return rpc.internal.serialize(obj)

    pickler = Counting()
    with api._use_rpc_pickler(pickler):
        assert torch.equal(rpc.rpc_sync("worker1", add, (ONES, 1)), 2 * ONES)
        result = rpc.rpc_sync("worker1", add_elsewhere, ("worker2", ONES, ONES))
    assert torch.equal(result, 2 * ONES)
    calls = pickler.calls
    assert calls == 3  # of this process; worker1's own call is one of them here
    assert rpc.rpc_sync("worker1", add, (1, 2)) == 3
    assert pickler.calls == calls


def test_calls_are_ranges_of_a_running_profiler(cluster) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for way in ("rpc_sync", "rpc_async", "remote"):
            call(way, "worker1", torch.add, ONES, 1)
    names = {event.name for event in profiler.events()}
    assert names >= {
        f"rpc_{way}#aten::add(worker0 -> worker1)" for way in ("sync", "async", "remote")
    }


@pytest.mark.parametrize("way", ["rpc_async", "remote"])
def test_a_range_never_waits_for_an_answer_that_may_outlive_the_profiler(cluster, way) -> None:
    """It would be ended in memory that the profiler has freed: the process died of it, later."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        result = getattr(rpc, way)("worker1", wait_at_gate)
        with torch.profiler.record_function("afterwards"):
            GATE.set()
            assert (result.wait() if way == "rpc_async" else result.to_here()) == "through"
    times = {event.name: event.time_range for event in profiler.events()}
    key = f"rpc_{way.removeprefix('rpc_')}#wait_at_gate(worker0 -> worker1)"
    assert times[key].end <= times["afterwards"].start


def test_a_call_that_cannot_be_made_ends_its_range(cluster) -> None:
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
        pytest.raises(RuntimeError, match="Can not pickle"),
    ):
        rpc.rpc_async("worker1", add, (torch.futures.Future(), 1))
    assert "rpc_async#add(worker0 -> worker1)" in [event.name for event in profiler.events()]


# ---------------------------------------------------------------- shutdown


def test_all_shut_down_together(cluster) -> None:
    late = []

    def work_and_shut_down() -> None:
        if rpc.get_worker_info().id == 0:
            late.append(rpc.rpc_async("worker1", wait_at_gate))
            threading.Timer(0.05, GATE.set).start()
        rpc.shutdown()

    assert set(on_all(cluster, work_and_shut_down).values()) == {None}
    assert late[0].wait() == "through"


def test_references_end_with_shutdown(cluster) -> None:
    kept = rpc.remote("worker1", add, (1, 2))
    on_all(cluster, rpc.shutdown)
    with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion"):
        kept.to_here()
    with pytest.raises(RuntimeError, match="Cannot call fork an UserRRef after deletion"):
        rpc.internal.serialize(kept)


def test_a_value_that_others_still_refer_to_is_a_leak_where_programs_ask(
    cluster, monkeypatch
) -> None:
    kept = rpc.remote("worker1", add, (1, 2))
    kept.to_here()
    monkeypatch.setattr(api, "_delete_all_user_and_unforked_owner_rrefs", lambda: None)
    monkeypatch.setattr(api, "_ignore_rref_leak", False)
    results = on_all(cluster, rpc.shutdown)
    assert "Leaking RRef" in str(results["worker1"])
    assert results["worker0"] is None


def test_an_error_on_the_way_is_raised_and_the_worker_is_at_an_end_all_the_same(
    cluster, monkeypatch
) -> None:
    def fail() -> None:
        raise RuntimeError("simulation")

    monkeypatch.setattr(api, "_delete_all_user_and_unforked_owner_rrefs", fail)
    results = on_all(cluster, rpc.shutdown)
    assert {str(error) for error in results.values()} == {"simulation"}
    with pytest.raises(RuntimeError):
        rpc.rpc_sync("worker0", add, (1, 2))


def test_a_shutdown_that_others_do_not_join_ends_with_its_timeout(cluster) -> None:
    with pytest.raises(RpcTimeoutError, match=r"Followers \['worker1', 'worker2'\] timed out"):
        rpc.shutdown(timeout=0.1)


def test_a_shutdown_without_grace_waits_for_nobody(cluster) -> None:
    rpc.rpc_async("worker1", wait_at_gate)
    rpc.shutdown(graceful=False)


def test_a_second_shutdown_does_nothing(cluster, monkeypatch) -> None:
    rpc.shutdown(graceful=False)
    monkeypatch.setattr(PROCESS, "has_ended", True)
    contextvars.Context().run(rpc.shutdown)
