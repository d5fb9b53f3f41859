"""Calls between processes: death, Ctrl-C, and forked children, as only processes show them."""

from __future__ import annotations

import gc
import os
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lockstitch import rpc
from lockstitch.errors import PeerDiedError, RemoteError
from lockstitch.memory import ring
from lockstitch.runtime.worker import current_worker
from lockstitch.testing import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSORS = sorted(os.sched_getaffinity(0))
entered, gate = threading.Event(), threading.Event()


@pytest.fixture
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(2, start_method="fork", rpc_timeout=30) as running:
        yield running


def add(x: Any, y: Any) -> Any:
    return x + y


def wait_at_gate() -> bool:
    entered.set()
    return gate.wait(60)


def open_gate() -> None:
    gate.set()


def wait_until_entered() -> None:
    assert entered.wait(60)
    entered.clear()


def bind_to(processor: int) -> None:
    """Has all threads of this process run there."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), (processor,))


def bytes_in_ring_of_calls(count: int) -> int:
    """Calls worker1; how many bytes it has taken out of the memory that both share."""
    for _ in range(count):
        assert rpc.rpc_sync("worker1", add, (1, 2)) == 3
    channel = current_worker().agent.peers.channel(rpc.get_worker_info("worker1").worker)
    return int(channel.connection._writer.words[ring.HEAD])  # type: ignore[attr-defined]


def time_when_death_is_seen(how: str) -> float:
    """Calls a worker that will die meanwhile; its last words are the time."""
    with pytest.raises(ConnectionError) as caught:
        WAITS[how]()
    assert isinstance(caught.value, RuntimeError)
    return time.time()


WAITS = {
    "sync": lambda: rpc.rpc_sync("worker1", wait_at_gate),
    "async": lambda: rpc.rpc_async("worker1", wait_at_gate).wait(),
    "wait_all of torch": lambda: torch.futures.wait_all([rpc.rpc_async("worker1", wait_at_gate)]),
    "wait_all": lambda: rpc.wait_all([rpc.rpc_async("worker1", wait_at_gate)]),
    "remote": lambda: rpc.remote("worker1", wait_at_gate).to_here(),
}


# ---------------------------------------------------------------- talking


def test_processes_call_each_other_with_values_of_any_size(cluster: ProcessCluster) -> None:
    for size in (1, 1000, 1_000_000):
        tensor = torch.arange(size, dtype=torch.float32)
        assert torch.equal(cluster.run(0, rpc.rpc_sync, "worker1", add, (tensor, 1)), tensor + 1)


def call_many(to: str, count: int) -> bool:
    futures = [rpc.rpc_async(to, add, args=(torch.full((n % 50,), 1.0), n)) for n in range(count)]
    return all(
        torch.equal(value, torch.full((n % 50,), 1.0 + n))
        for n, value in enumerate(torch.futures.wait_all(futures))
    )


def test_both_call_at_once(cluster: ProcessCluster) -> None:
    tasks = [
        cluster.start(0, call_many, "worker1", 500),
        cluster.start(1, call_many, "worker0", 500),
    ]
    assert [task.result() for task in tasks] == [True, True]


def call_from_threads(to: str) -> list[int]:
    results: list[int] = []
    threads = [
        threading.Thread(
            target=lambda n=n: results.append(
                sum(rpc.rpc_sync(to, add, args=(n, turn)) - turn for turn in range(50))
            )
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results)


def test_many_threads_share_a_connection(cluster: ProcessCluster) -> None:
    assert cluster.run(0, call_from_threads, "worker1") == [50 * n for n in range(8)]


def pass_a_large_tensor_both_ways_at_once(to: str) -> bool:
    tensor = torch.ones(2_000_000)
    futures = [rpc.rpc_async(to, add, args=(tensor, n)) for n in range(6)]
    return all(future.wait()[-1] == 1 + n for n, future in enumerate(futures))


def test_large_tensors_both_ways_at_once_do_not_block_each_other(cluster: ProcessCluster) -> None:
    tasks = [
        cluster.start(name, pass_a_large_tensor_both_ways_at_once, other)
        for name, other in (("worker0", "worker1"), ("worker1", "worker0"))
    ]
    assert [task.result() for task in tasks] == [True, True]


# ---------------------------------------------------------------- dying


@pytest.mark.parametrize("how", WAITS)
def test_killed_peer_is_seen_at_once(cluster: ProcessCluster, how: str) -> None:
    task = cluster.start(0, time_when_death_is_seen, how)
    cluster.run(1, wait_until_entered)
    killed = time.time()
    cluster.kill(1)
    seen = task.result(timeout_seconds=60)
    assert seen - killed < 20  # of the 30 s that the call may take; usually some milliseconds
    with pytest.raises(PeerDiedError):
        cluster.run(0, rpc.rpc_sync, "worker1", add, (1, 2))


def test_stopped_and_continued_peer_is_not_dead(cluster: ProcessCluster) -> None:
    os.kill(cluster.pid(1), signal.SIGSTOP)
    task = cluster.start(0, rpc.rpc_sync, "worker1", add, (1, 2))
    with pytest.raises(TimeoutError):
        task.result(timeout_seconds=0.2)
    os.kill(cluster.pid(1), signal.SIGCONT)
    assert task.result() == 3


# ---------------------------------------------------------------- Ctrl-C


def call_until_interrupted(how: str) -> str:
    try:
        WAITS[how]()
    except KeyboardInterrupt:
        # The connection is whole: the next call finds it so.
        return rpc.rpc_sync("worker1", add, args=("still ", "usable"))
    return "not interrupted"


@pytest.mark.parametrize("how", ["sync", "async", "wait_all", "remote"])
def test_ctrl_c_ends_a_wait_and_nothing_else(cluster: ProcessCluster, how: str) -> None:
    for _ in range(3):
        task = cluster.start(0, call_until_interrupted, how)
        cluster.run(1, wait_until_entered)
        cluster.interrupt(0)
        assert task.result(timeout_seconds=60) == "still usable"
    cluster.run(1, open_gate)
    assert cluster.run(0, rpc.rpc_sync, "worker1", wait_at_gate) is True


told: queue.SimpleQueue[int] = queue.SimpleQueue()


def add_and_tell(x: torch.Tensor, turn: int) -> torch.Tensor:
    told.put(turn)
    return x + turn


def wait_until_told(turn: int) -> None:
    while told.get(timeout=60) != turn:
        pass  # a late one of an earlier turn


def call_for_ever(to: str, turn: int) -> None:
    gc.collect()
    gc.disable()  # Python ignores an interrupt that strikes a callback of the garbage collector
    while True:
        tensor = torch.arange(5000)
        assert torch.equal(rpc.rpc_sync(to, add_and_tell, args=(tensor, turn)), tensor + turn)


def test_ctrl_c_at_any_moment_of_many_calls(cluster: ProcessCluster) -> None:
    pause = threading.Event()
    for turn in range(20):
        task = cluster.start(0, call_for_ever, "worker1", turn)
        cluster.run(1, wait_until_told, turn)
        pause.wait(0.0007 * turn)
        cluster.interrupt(0)
        with pytest.raises(RemoteError, match="KeyboardInterrupt"):
            task.result(timeout_seconds=60)
    assert cluster.run(0, call_many, "worker1", 100)


# ---------------------------------------------------------------- forked children


class Pids(Dataset[int]):
    """The process that loads an item."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return os.getpid()


KEPT: list[Any] = []


def load_and_call(to: str) -> int:
    """Loads by forked workers, between calls; returns the process id of one that lives on."""
    assert rpc.rpc_sync(to, add, args=(1, 2)) == 3
    loader = DataLoader(Pids(), batch_size=2, num_workers=1, persistent_workers=True)
    for batch in loader:
        assert rpc.rpc_sync(to, add, args=(batch, 0)).tolist() == batch.tolist()
    KEPT.append(loader)
    return int(batch[0])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_data_loader_with_forked_workers_does_not_break_its_parent(cluster: ProcessCluster) -> None:
    child = cluster.run(0, load_and_call, "worker1")
    assert child not in (cluster.pid(0), os.getpid())
    assert cluster.run(1, rpc.rpc_sync, "worker0", add, (1, 2)) == 3
    assert cluster.run(0, call_many, "worker1", 100)
    cluster.run(0, KEPT.clear)


def test_child_does_not_keep_the_sockets_of_its_dead_parent_open(cluster: ProcessCluster) -> None:
    child = cluster.run(0, load_and_call, "worker1")
    task = cluster.start(1, time_when_death_of_caller_is_seen)
    killed = time.time()
    cluster.kill(0)
    try:
        seen = task.result(timeout_seconds=60)
        assert is_alive(child)
        assert seen - killed < 1
    finally:
        if is_alive(child):
            os.kill(child, signal.SIGKILL)


def time_when_death_of_caller_is_seen() -> float:
    try:
        rpc.rpc_sync("worker0", wait_at_gate)
    except PeerDiedError:
        return time.time()
    raise AssertionError("it answered")


def test_device_maps_of_the_host_are_agreed_upon_and_change_nothing():
    maps = {"worker0": {"cpu": "cpu"}}
    with ProcessCluster(2, start_method="fork", rpc_timeout=30, device_maps=maps) as running:
        assert (
            running.run("worker1", rpc.rpc_sync, "worker0", torch.add, (torch.ones(2), 1))
            .eq(2)
            .all()
        )


def test_a_device_map_for_nobody_is_refused_by_all():
    maps = {"nobody": {"cpu": "cpu"}}
    with (
        pytest.raises(ValueError, match="Node worker0 has invalid target node names"),
        ProcessCluster(2, start_method="fork", rpc_timeout=30, device_maps=maps),
    ):
        pass


@pytest.mark.skipif(not ring.IS_AVAILABLE, reason="needs ordered stores")
@pytest.mark.skipif(len(PROCESSORS) < 2, reason="nobody looks on the processor of the other one")
def test_short_messages_between_workers_that_look_for_them_cross_in_shared_memory(cluster) -> None:
    for rank in (0, 1):
        cluster.run(rank, bind_to, PROCESSORS[rank])
    assert cluster.run(0, bytes_in_ring_of_calls, 300) > 0
