"""Futures in the order in which they complete."""

from __future__ import annotations

import asyncio

import pytest

from lockstitch.rpc.worker_groups.arrivals import Arrivals
from lockstitch.runtime.pending import Future


def test_keys_come_in_the_order_of_completion(cluster) -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]
    arrivals: Arrivals[int] = Arrivals()
    for key, future in enumerate(futures):
        arrivals.expect(future, key)
    futures[2].complete(1, None)
    futures[0].complete(None, KeyError())
    coming = iter(arrivals)
    assert [next(coming), next(coming)] == [2, 0]
    assert len(arrivals) == 1
    futures[1].complete(1, None)
    assert list(coming) == [1]


def test_more_may_be_expected_meanwhile(cluster) -> None:
    arrivals: Arrivals[str] = Arrivals()
    done: Future[int] = Future()
    done.complete(1, None)
    arrivals.expect(done, "first")
    seen = []
    for key in arrivals:
        seen.append(key)
        if key == "first":
            arrivals.expect(done, "second")
    assert seen == ["first", "second"]


def test_coroutine_waits_without_holding_its_loop(cluster) -> None:
    async def collect() -> list[int]:
        future: Future[int] = Future()
        arrivals: Arrivals[int] = Arrivals()
        arrivals.expect(future, 5)
        asyncio.get_running_loop().call_soon(future.complete, 1, None)
        return [key async for key in arrivals]

    assert asyncio.run(collect()) == [5]


@pytest.mark.parametrize("count", [0, 1])
def test_it_ends_when_none_is_expected(cluster, count) -> None:
    arrivals: Arrivals[int] = Arrivals()
    for key in range(count):
        future: Future[int] = Future()
        arrivals.expect(future, key)
        future.complete(None, None)
    assert list(arrivals) == list(range(count))
