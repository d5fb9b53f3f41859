"""What a generator on another worker yields: in order, within the window, with its gradients, and
with an end of its own whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from contextvars import ContextVar

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import PeerDiedError, RpcTimeoutError, RRefError, SerializationError
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.wire.messages import Call, RemoteCall, Reply

MADE: list[int] = []
ENDED, HELD = threading.Event(), threading.Event()
PLACE: ContextVar[int] = ContextVar("place", default=-1)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    MADE.clear()
    ENDED.clear()
    HELD.clear()


def count(n: int):
    try:
        for number in range(n):
            MADE.append(number)
            yield number
    finally:
        ENDED.set()
    return "all"


async def count_later(n: int):
    try:
        for number in range(n):
            await asyncio.sleep(0)
            MADE.append(number)
            yield number
    finally:
        ENDED.set()


def powers(x: torch.Tensor, n: int):
    y = x
    for _ in range(n):
        y = y * x
        yield y


async def powers_later(x: torch.Tensor, n: int):
    for item in powers(x, n):
        yield await rpc.rpc_async("worker2", torch.mul, (item, 1.0))


def same_buffer(n: int):
    buffer = torch.zeros(2)
    for _ in range(n):
        buffer += 1
        yield buffer


def without_graph(x: torch.Tensor):
    with torch.no_grad(), torch.autocast("cpu"):
        for _ in range(3):
            yield x * 2


def remember():
    PLACE.set(0)
    while True:
        yield PLACE.get()
        PLACE.set(PLACE.get() + 1)


async def remember_later():
    PLACE.set(0)
    while True:
        yield PLACE.get()
        await asyncio.sleep(0)
        PLACE.set(PLACE.get() + 1)


def fail_after(n: int):
    yield from range(n)
    raise KeyError("mine")


def hold_after(n: int):
    yield from range(n)
    HELD.wait(30)


def hold_in_between(n: int):
    yield 0
    HELD.wait(30)
    yield from range(1, n)


def fail_to_close():
    try:
        while True:
            yield 1
    finally:
        raise OSError("dirty")


def locks():
    yield threading.Lock()


def plain() -> int:
    return 3


async def coroutine() -> int:
    return 3


def is_recording(x: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("to", ["worker0", "worker1"])
@pytest.mark.parametrize("function", [count, count_later])
@pytest.mark.parametrize("window", [1, 3, 100])
def test_items_come_in_order(cluster, to, function, window) -> None:
    assert list(rpc.stream(to, function, (20,), window=window)) == list(range(20))
    assert list(rpc.stream(to, function, (0,), window=window)) == []
    assert ENDED.wait(30)


def test_return_value_ends_it_as_in_one_process(cluster) -> None:
    def delegate():
        return (yield from rpc.stream("worker1", count, (2,)))

    delegating = delegate()
    assert [next(delegating), next(delegating)] == [0, 1]
    with pytest.raises(StopIteration) as ended:
        next(delegating)
    assert ended.value.value == "all"


def test_any_iterator_may_be_returned(cluster) -> None:
    assert list(rpc.stream("worker1", map, (abs, [-1, 2]))) == [1, 2]


@pytest.mark.parametrize("function", [count, count_later])
def test_no_more_than_the_window_is_made_in_advance(cluster, function) -> None:
    with rpc.stream("worker1", function, (100,), window=3) as stream:
        for number in range(10):
            assert next(stream) == number
            rpc.rpc_sync("worker1", plain)
            assert len(MADE) <= number + 1 + 3
    assert ENDED.is_set()
    assert len(MADE) <= 13


@pytest.mark.parametrize("function", [count, count_later])
def test_early_end_closes_the_generator(cluster, function) -> None:
    stream = rpc.stream("worker1", function, (100,))
    assert next(stream) == 0
    stream.close()
    assert ENDED.is_set()
    assert list(stream) == []
    stream.close()


@pytest.mark.parametrize("function", [count, count_later])
def test_forgotten_stream_ends_the_generator_too(cluster, function) -> None:
    stream = rpc.stream("worker1", function, (100,))
    assert next(stream) == 0
    del stream
    gc.collect()
    assert ENDED.wait(30)


def test_generator_that_fails_to_clean_up_is_told_of(cluster) -> None:
    stream = rpc.stream("worker1", fail_to_close)
    next(stream)
    with pytest.raises(OSError, match="dirty"):
        stream.close()


def test_error_is_raised_in_its_place_and_ends_it(cluster) -> None:
    stream = rpc.stream("worker1", fail_after, (2,))
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(KeyError, match="mine") as raised:
        next(stream)
    assert "in fail_after" in str(raised.value.__cause__)
    assert list(stream) == []


def test_item_that_cannot_be_sent_is_told_of(cluster) -> None:
    stream = rpc.stream("worker1", locks)
    with pytest.raises(RuntimeError, match="cannot send"):
        next(stream)
    with pytest.raises(RuntimeError, match="cannot send a call of count to worker 'worker1'"):
        rpc.stream("worker1", count, (threading.Lock(),))


@pytest.mark.parametrize(
    ("function", "args", "text"),
    [
        (plain, (), "plain on worker 'worker1' returned a int"),
        (coroutine, (), "returned a coroutine"),
        (count, (), "missing 1 required positional argument"),
    ],
)
def test_what_is_no_generator_is_refused(cluster, function, args, text) -> None:
    with pytest.raises(TypeError, match=text):
        next(rpc.stream("worker1", function, args))


def test_generator_given_to_rpc_sync_is_told_of_stream(cluster) -> None:
    for function in (count, count_later):
        with pytest.raises(SerializationError, match="it is a generator. rpc.stream"):
            rpc.rpc_sync("worker1", function, (3,))


def test_bad_window_and_function_are_refused(cluster) -> None:
    with pytest.raises(ValueError, match="1 at least, not 0"):
        rpc.stream("worker1", count, (3,), window=0)
    with pytest.raises(TypeError, match="should be callable"):
        rpc.stream("worker1", 3)  # type: ignore[arg-type]


def test_timeout_is_that_of_one_item(cluster) -> None:
    stream = rpc.stream("worker1", hold_after, (3,), timeout=0.3)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RpcTimeoutError):
        next(stream)
    HELD.set()
    assert list(stream) == []


def test_item_that_is_waited_for_late_has_not_timed_out(cluster) -> None:
    """The time of an item runs while it is waited for, not while the consumer does other things."""
    stream = rpc.stream("worker1", hold_after, (1,), timeout=0.2)
    assert next(stream) == 0
    threading.Event().wait(0.4)
    HELD.set()
    assert list(stream) == []


def test_death_in_the_middle_is_raised_where_one_iterates(cluster) -> None:
    stream = rpc.stream("worker1", count, (100,), window=2)
    assert next(stream) == 0
    cluster.kill("worker1")
    with pytest.raises(PeerDiedError, match="worker1"):
        list(stream)
    stream.close()


@pytest.mark.slow  # its owner waits for a while for what the dead may have passed on
def test_generator_of_a_consumer_that_died_is_closed(cluster) -> None:
    with cluster[2].active():
        stream = rpc.stream("worker1", count, (100,))
        assert next(stream) == 0
    cluster.kill("worker2")
    assert ENDED.wait(30)


def test_worker_that_leaves_closes_its_generators() -> None:
    with LocalCluster(2) as cluster, cluster[0].active():
        stream = rpc.stream("worker1", count, (100,))
        assert next(stream) == 0
    assert ENDED.is_set()


def test_each_item_is_what_was_yielded_then(cluster) -> None:
    """The generator goes on, and changes its buffer, only when the item has left."""
    for to in ("worker0", "worker1"):
        items = list(rpc.stream(to, same_buffer, (20,)))
        assert [item.tolist() for item in items] == [[n, n] for n in range(1, 21)]


@pytest.mark.parametrize("function", [powers, powers_later])
@pytest.mark.parametrize("to", ["worker0", "worker1"])
@pytest.mark.parametrize("window", [1, 8])
def test_gradients_of_all_items_are_those_of_one_process(cluster, function, to, window) -> None:
    x, same = (torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True) for _ in "ab")
    with autograd.context() as context_id:
        items = list(rpc.stream(to, function, (x, 6), window=window))
        loss = sum(item.sum() * n for n, item in enumerate(items))
        autograd.backward(context_id, [loss])
        gradient = autograd.get_gradients(context_id)[x]
    sum(item.sum() * n for n, item in enumerate(powers(same, 6))).backward()
    assert torch.equal(gradient, same.grad)


def test_modes_of_a_generator_stay_with_it(cluster) -> None:
    """A pool thread that were left in no_grad would compute without a graph for everybody else."""
    x = torch.ones(2, requires_grad=True)
    with rpc.stream("worker1", without_graph, (x,), window=1) as stream:
        assert not next(stream).requires_grad
        assert all(rpc.rpc_sync("worker1", is_recording, (x,)) for _ in range(20))


def modes_inside():
    while True:
        yield torch.is_grad_enabled()
        with torch.enable_grad():
            yield torch.is_grad_enabled()


async def modes_inside_later():
    while True:
        yield torch.is_grad_enabled()
        with torch.enable_grad():
            yield torch.is_grad_enabled()
            await asyncio.sleep(0)
            yield torch.is_grad_enabled()


@pytest.mark.parametrize("function", [modes_inside, modes_inside_later])
def test_carried_modes_are_those_of_every_step(cluster, function) -> None:
    with rpc.carry_modes(), torch.no_grad():
        stream = rpc.stream("worker1", function, window=1)
    seen = [next(stream) for _ in range(4)]
    stream.close()
    assert seen == ([False, True, False, True] if function is modes_inside else [0, 1, 1, 0])
    assert rpc.rpc_sync("worker1", is_recording, (torch.ones(1),))


@pytest.mark.parametrize("function", [remember, remember_later])
def test_context_variables_are_kept_from_step_to_step(cluster, function) -> None:
    with rpc.stream("worker1", function, window=2) as stream:
        assert [next(stream) for _ in range(5)] == [0, 1, 2, 3, 4]


def test_stream_belongs_to_the_context_in_which_it_was_opened(cluster) -> None:
    x = torch.ones(2, requires_grad=True)
    with autograd.context():
        stream = rpc.stream("worker1", powers, (x, 10))
        next(stream)
    with autograd.context(), pytest.raises(RuntimeError, match="one stream for each context"):
        next(stream)
    stream.close()


def test_it_records_what_it_did_when_it_was_opened(cluster) -> None:
    x = torch.ones(2, requires_grad=True)
    with autograd.context():
        stream = rpc.stream("worker1", powers, (x, 10), window=1)
        with torch.no_grad():
            assert [next(stream).requires_grad for _ in range(3)] == [True] * 3
        with torch.no_grad():
            silent = rpc.stream("worker1", powers, (x, 10), window=1)
        assert [next(silent).requires_grad for _ in range(3)] == [False] * 3


def test_it_can_be_iterated_by_a_coroutine(cluster) -> None:
    async def collect() -> list[int]:
        async with rpc.stream("worker1", count_later, (10,)) as stream:
            return [item async for item in stream]

    assert asyncio.run(collect()) == list(range(10))
    assert ENDED.is_set()


def test_a_coroutine_that_gives_up_waiting_finds_the_item_later(cluster) -> None:
    async def collect() -> list[int]:
        async with rpc.stream("worker1", hold_in_between, (3,)) as stream:
            found = [await anext(stream)]
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.02)
            assert len(stream._arrivals) == 1  # it waits once, however often it is asked
            HELD.set()
            return found + [item async for item in stream]

    assert asyncio.run(collect()) == list(range(3))


def test_streams_go_through_workers(cluster) -> None:
    assert list(rpc.stream("worker1", pass_on, ("worker2", 20))) == list(range(20))


def pass_on(to: str, n: int):
    yield from rpc.stream(to, count, (n,))


@pytest.mark.parametrize("message", [Call, Reply, RemoteCall])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_lost_message_is_a_timeout_and_never_a_wrong_item(message, nth) -> None:
    faults = Faults().drop(message, nth=nth)
    with LocalCluster(2, faults=faults) as cluster, cluster[0].active():
        seen: list[int] = []
        with contextlib.suppress(RpcTimeoutError, RRefError):
            seen.extend(rpc.stream("worker1", count, (6,), timeout=0.5, window=2))
        assert seen == list(range(len(seen)))


@pytest.mark.parametrize("nth", range(1, 7))
def test_messages_that_come_twice_or_late_change_nothing(nth) -> None:
    for faults in (
        Faults().repeat(Call, nth=nth),
        Faults().reorder(Call, nth=nth),
        Faults().repeat(Reply, nth=nth),
        Faults().reorder(Reply, nth=nth),
    ):
        with LocalCluster(2, faults=faults) as cluster, cluster[0].active():
            assert list(rpc.stream("worker1", count, (6,), window=3)) == list(range(6))
