"""`async def` functions on other workers: values, gradients, errors, and their end."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import CallCancelledError, RpcTimeoutError
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.wire.messages import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGUN, ENDED = threading.Event(), threading.Event()


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    BEGUN.clear()
    ENDED.clear()
    COUNTED.clear()
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster


async def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    await asyncio.sleep(0)
    return x * factor


async def scale_without_graph(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        await asyncio.sleep(0)
        return x * 100


async def through(names: list[str], x: torch.Tensor) -> torch.Tensor:
    """Asks the others one after the other, each by a function that asks the rest."""
    if names:
        x = await rpc.rpc_async(names[0], through, (names[1:], x))
    return x * 2 + await rpc.rpc_async(rpc.get_worker_info().name, scale, (x, 3.0))


async def wait_for_ever() -> None:
    try:
        BEGUN.set()
        await asyncio.Event().wait()
    finally:
        ENDED.set()


async def wait_at(name: str) -> None:
    await rpc.rpc_async(name, wait_for_ever)


async def fail() -> None:
    await asyncio.sleep(0)
    raise KeyError("mine")


async def wait_with_something() -> None:
    held = Counter()
    weakref.finalize(held, ENDED.set)
    BEGUN.set()
    await asyncio.Event().wait()


async def fail_with_something() -> None:
    held = Counter()
    weakref.finalize(held, ENDED.set)
    BEGUN.set()
    raise KeyError("mine")


async def block() -> object:
    return rpc.rpc_sync("worker2", torch.add, (1, 1))


COUNTED: list[int] = []


async def count() -> int:
    await asyncio.sleep(0)
    COUNTED.append(1)
    return len(COUNTED)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    async def add(self, n: int) -> int:
        await asyncio.sleep(0)
        self.count += n
        return self.count


def test_value_is_that_of_the_coroutine(cluster) -> None:
    for to in ("worker0", "worker1"):
        assert rpc.rpc_sync(to, scale, (torch.ones(2), 2.0)).tolist() == [2, 2]
        assert rpc.remote(to, scale, (torch.ones(2), 2.0)).to_here().tolist() == [2, 2]
    counter = rpc.remote("worker1", Counter)
    assert counter.rpc_sync().add(2) == 2
    assert counter.rpc_async().add(3).wait() == 5
    assert counter.remote().add(1).to_here() == 6


def test_gradients_follow_a_chain_of_coroutines(cluster) -> None:
    """Each calls the next, and itself, on one loop, and no thread is held."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    names = ["worker1", "worker2", "worker0", "worker1"]
    with autograd.context() as context_id:
        y = rpc.rpc_sync("worker2", through, (names, x))
        autograd.backward(context_id, [y.sum()])
        gradient = autograd.get_gradients(context_id)[x]
    assert y.tolist() == (5**5 * x).tolist()
    assert gradient.tolist() == [5.0**5] * 2


def test_mode_of_one_coroutine_leaves_the_graph_of_others_alone(cluster) -> None:
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        calls = []
        for _ in range(10):
            calls.append(rpc.rpc_async("worker1", scale_without_graph, (x,)))
            calls.append(rpc.rpc_async("worker1", scale, (x, 2.0)))
        autograd.backward(context_id, [torch.stack([each.wait() for each in calls]).sum()])
        assert autograd.get_gradients(context_id)[x].tolist() == [20.0, 20.0]


def test_error_is_raised_as_itself_with_the_remote_traceback(cluster, capsys) -> None:
    with pytest.raises(KeyError, match="mine") as raised:
        rpc.rpc_sync("worker1", fail)
    assert "in fail" in str(raised.value.__cause__)
    assert "KeyError" in capsys.readouterr().err


def test_a_wait_on_the_loop_is_refused(cluster) -> None:
    with pytest.raises(RuntimeError, match="await the future of rpc_async"):
        rpc.rpc_sync("worker1", block)


async def go_back(context_id: int, x: torch.Tensor, in_thread: bool) -> None:
    y = await rpc.rpc_async("worker2", torch.mul, (x, 2))

    def run() -> None:
        autograd.backward(context_id, [y.sum()])

    await asyncio.to_thread(run) if in_thread else run()


def test_backward_pass_on_the_loop_is_refused_and_runs_in_a_thread(cluster) -> None:
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        with pytest.raises(RuntimeError, match=r"a backward pass would .* asyncio.to_thread"):
            rpc.rpc_sync("worker1", go_back, (context_id, x, False))
        rpc.rpc_sync("worker1", go_back, (context_id, x, True))
        assert autograd.get_gradients(context_id)[x].tolist() == [2.0, 2.0]


def test_timeout_cancels_the_coroutine_and_what_it_awaits(cluster) -> None:
    with pytest.raises(RpcTimeoutError):
        rpc.rpc_sync("worker1", wait_at, ("worker2",), timeout=0.2)
    assert ENDED.wait(30)


def test_cancel_ends_the_coroutine_and_what_it_awaits(cluster) -> None:
    future = rpc.rpc_async("worker1", wait_at, ("worker2",))
    assert BEGUN.wait(30)
    assert future.cancel()
    with pytest.raises(CallCancelledError):
        future.wait()
    assert ENDED.wait(30)
    assert not future.cancel()  # it is over


@pytest.mark.parametrize("function", [wait_with_something, fail_with_something])
def test_what_a_coroutine_held_goes_without_the_collector(cluster, function) -> None:
    gc.disable()
    try:
        future = rpc.rpc_async("worker1", function)
        assert BEGUN.wait(30)
        future.cancel()
        with pytest.raises((CallCancelledError, KeyError)):
            future.wait()
        assert ENDED.wait(30)
    finally:
        gc.enable()


def test_cancelling_what_awaits_a_call_cancels_it(cluster) -> None:
    async def give_up() -> None:
        await asyncio.wait_for(rpc.rpc_async("worker1", wait_for_ever), 0.2)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(give_up())
    assert ENDED.wait(30)


def test_coroutine_of_a_caller_that_died_is_cancelled(cluster) -> None:
    with cluster[2].active():
        rpc.rpc_async("worker1", wait_for_ever)
    assert BEGUN.wait(30)
    cluster.kill("worker2")
    assert ENDED.wait(30)


def test_coroutine_runs_once_although_its_answer_is_lost() -> None:
    COUNTED.clear()
    with LocalCluster(2, faults=Faults().drop(Reply)) as cluster, cluster[0].active():
        with pytest.raises(RpcTimeoutError):
            rpc.rpc_sync("worker1", count, timeout=0.3)
        assert rpc.rpc_sync("worker1", count) == 2
