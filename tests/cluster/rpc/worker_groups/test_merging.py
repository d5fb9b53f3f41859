"""Streams of all workers, item by item as they come."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import GroupError, PeerDiedError

HELD = threading.Event()
ENDED: list[str] = []


def name() -> str:
    return rpc.get_worker_info().name


def count(n: int, slow: str = ""):
    if name() == slow:
        HELD.wait(30)
    try:
        yield from range(n)
    finally:
        ENDED.append(name())


def powers(x: torch.Tensor, n: int):
    for exponent in range(n):
        yield (x * (rpc.get_worker_info().id + 1)) ** exponent


def fail_on(failing: str):
    yield 1
    if name() == failing:
        raise KeyError(failing)
    yield 2


def fail_to_close():
    try:
        while True:
            yield 1
    finally:
        ENDED.append(name())
        raise OSError("dirty")


def collect_into(seen: list[tuple[int, int]], stream: rpc.GroupStream) -> None:
    for worker, item in stream:
        seen.append((worker.id, item))


def read_until_all_have_begun(stream: rpc.GroupStream) -> None:
    """A generator that was closed before it began runs nothing of its body, `finally` neither."""
    begun: set[int] = set()
    while len(begun) < len(stream.workers):
        begun.add(next(stream)[0].id)


def test_items_of_each_come_in_order_and_the_slow_holds_nobody_up(cluster) -> None:
    HELD.clear()
    seen: dict[str, list[int]] = {worker.name: [] for worker in rpc.group()}
    for worker, item in rpc.group().stream(count, (20, "worker1"), window=2):
        seen[worker.name].append(item)
        if sum(map(len, seen.values())) == 60:
            assert not seen["worker1"]
            HELD.set()
    assert seen == {worker.name: list(range(20)) for worker in rpc.group()}


def test_streams_can_be_read_side_by_side(cluster) -> None:
    rows = list(zip(*rpc.group()[:3].stream(count, (4,)).streams, strict=True))
    assert rows == [(n, n, n) for n in range(4)]


def test_failure_of_one_is_raised_once_and_the_others_go_on(cluster) -> None:
    stream, seen = rpc.group().stream(fail_on, ("worker2",)), []
    with pytest.raises(KeyError) as raised:
        collect_into(seen, stream)
    if hasattr(raised.value, "__notes__"):
        assert any("stream of worker 'worker2'" in note for note in raised.value.__notes__)
    collect_into(seen, stream)
    assert sorted(seen) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1), (3, 2)]


def test_death_of_one_is_raised_and_the_others_go_on(cluster) -> None:
    stream = rpc.group()[1:].stream(count, (50,), window=1)
    next(stream)
    cluster.kill("worker2")
    left: list[tuple[int, int]] = []
    with pytest.raises(PeerDiedError, match="worker2"):
        collect_into(left, stream)
    collect_into(left, stream)
    assert {1, 3} <= {rank for rank, _ in left}


def test_end_closes_all_generators(cluster) -> None:
    ENDED.clear()
    with rpc.group().stream(count, (10**9,)) as stream:
        read_until_all_have_begun(stream)
    assert sorted(ENDED) == rpc.group().names
    assert list(stream) == []


@pytest.mark.parametrize("way", ["close", "aclose"])
def test_end_closes_all_generators_though_they_raise(cluster, way) -> None:
    ENDED.clear()
    stream = rpc.group().stream(fail_to_close)
    read_until_all_have_begun(stream)
    with pytest.raises(GroupError, match="4 of 4 generators failed"):
        stream.close() if way == "close" else asyncio.run(stream.aclose())
    assert sorted(ENDED) == rpc.group().names


def test_it_can_be_iterated_by_a_coroutine(cluster) -> None:
    async def collect() -> list[int]:
        async with rpc.group().stream(count, (5,)) as stream:
            return [item async for _, item in stream]

    assert sorted(asyncio.run(collect())) == sorted(list(range(5)) * 4)


def test_gradients_of_all_streams_are_those_of_one_process(cluster) -> None:
    x, same = (torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True) for _ in "ab")
    with autograd.context() as context_id:
        items = {(w.id, n): None for w in rpc.group() for n in range(3)}
        counts = [0] * 4
        for worker, item in rpc.group().stream(powers, (x, 3)):
            items[worker.id, counts[worker.id]] = item
            counts[worker.id] += 1
        loss = torch.stack(list(items.values())).sum()
        autograd.backward(context_id, [loss])
        gradient = autograd.get_gradients(context_id)[x]
    torch.stack([(same * rank) ** n for rank in (1, 2, 3, 4) for n in range(3)]).sum().backward()
    torch.testing.assert_close(gradient, same.grad, rtol=1e-12, atol=0)
