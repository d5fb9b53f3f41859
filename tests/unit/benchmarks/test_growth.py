"""Costs that grow with the world are seen by those who count them."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from torch.distributed import HashStore

from benchmarks.growth.simulation import StandingClock, simulate
from benchmarks.growth.stores import Asked, CountingStore, StoreTally, size_of
from benchmarks.growth.work import counted
from lockstitch import rpc
from lockstitch.testing import LocalCluster, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable


def asked_by_all(size: int, start: Callable[[CountingStore, int], object]) -> Asked:
    """What so many workers ask of a store that start so, at the same time."""
    store, tally = HashStore(), StoreTally()
    threads = [
        threading.Thread(target=start, args=(CountingStore(store, tally), rank))
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally.asked


def start_after_the_one_before(store: CountingStore, rank: int) -> None:
    if rank:
        store.wait([f"{rank - 1}"])
    store.set(f"{rank}", "here")


def start_with_all(size: int, store: CountingStore, rank: int) -> None:
    store.set(f"{rank}", "here")
    client = store.clone()
    client.wait([f"{each}" for each in range(size)])
    assert client.multi_get([f"{each}" for each in range(size)]) == size * [b"here"]


def test_a_start_one_after_the_other_is_as_deep_as_there_are_workers() -> None:
    for size in (2, 7):
        asked = asked_by_all(size, start_after_the_one_before)
        assert asked.requests == 2 * size - 1
        assert asked.depth == 2 * size  # the setting of each, and the answer that the next got


def test_a_start_all_at_once_is_as_deep_in_any_world() -> None:
    for size in (2, 7):
        asked = asked_by_all(size, partial(start_with_all, size))
        assert asked.requests == 3 * size
        assert asked.depth == 2 * 3
        # A key and its value each, and two lists of keys and one of values for each.
        assert asked.bytes == size * (1 + 4) + size * size * (1 + 1 + 4)


def test_sizes_of_what_is_asked_and_answered() -> None:
    assert size_of("four") == size_of(b"four") == 4
    assert size_of(["a", b"bc"]) == 3
    assert size_of(7) == size_of(True) == 8
    assert size_of(None) == 0


def tell(text: str) -> int:
    return len(text)


def test_a_call_that_tells_of_all_others_grows() -> None:
    costs = []
    for size in (2, 8):
        with LocalCluster(size, clock=StandingClock()) as cluster:
            names = ",".join(cluster.names)
            cluster.run(0, rpc.rpc_sync, "worker1", tell, (names,))
            before = cluster.traffic()
            cluster.run(0, rpc.rpc_sync, "worker1", tell, (names,))
            costs.append(counted(cluster.traffic() - before))
    (messages, few), (same_messages, more) = costs
    assert messages == same_messages == 2
    assert more - few >= 6 * len(",worker0")


def test_what_may_come_late_is_not_counted() -> None:
    kinds = {"Call": 1, "Reply": 1, "ContextReleased": 1}
    sizes = {"Call": 50, "Reply": 20, "ContextReleased": 30}
    assert counted(Traffic(kinds=kinds, sizes=sizes)) == (2, 70)


def test_a_simulated_world_is_counted() -> None:
    counts = simulate(None, 3)
    assert (counts.call_messages, counts.backward_messages, counts.find_messages) == (2, 5, 0)
    assert 0 < counts.call_bytes < counts.backward_bytes
    assert (counts.start_requests, counts.start_depth) == (24, 16)
    assert counts.shutdown_messages > counts.shutdown_depth > 10
    assert counts.most_connections == 4
