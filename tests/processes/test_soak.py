"""Mixed work over four processes for a while: every result is right, and nothing is left of it.

Each worker runs a random sequence of calls, references and backward passes, towards all others and
itself, with tensors from a few numbers to some megabytes. After a first part, in which pools grow
to their size, an inventory is taken, and again at the end. `--soak-seconds` sets how long the long
variant lasts (`make test-all` runs it).
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.autograd.service import AutogradService
from lockstitch.memory.mapping import NAME as SEGMENT_NAME
from lockstitch.memory.segments import SegmentPool
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.worker import current_worker
from lockstitch.testing import ProcessCluster

if TYPE_CHECKING:
    from lockstitch.memory.pools import PoolStatistics

WORKERS = 4
SETTLE_SECONDS = 25.0  # idle threads go after ten
MEGABYTE_OF_FLOATS = (1 << 20) // 4
# Each pair has a connection for each way of calling, on which both may lend; two map each table.
TABLES = WORKERS * (WORKERS - 1) * 2 * 2
NO_REFERENCES = "0 values, 0 forks, 0 used, 0 pending"
MOST_KEPT_MB = 4.0
HELD: list[rpc.RRef] = []


# ---------------------------------------------------------------- what others run


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor * factor


def overwrite(tensor: torch.Tensor) -> torch.Tensor:
    """What arrives is the receiver's own."""
    tensor.zero_()
    return tensor


def refuse(text: str) -> None:
    raise KeyError(text)


def ask_another(to: str, number: int) -> int:
    return rpc.rpc_sync(to, abs, args=(number,))


def fetch(rref: rpc.RRef[torch.Tensor]) -> float:
    return float(rref.to_here().sum())


# ---------------------------------------------------------------- what each worker does


class Work:
    """Pieces of work with random sizes and partners, each of which checks its result."""

    def __init__(self, seed: int, names: list[str]) -> None:
        self.random = random.Random(seed)
        self.names = names
        self.done: Counter[str] = Counter()
        self.kinds = [
            self.small_calls,
            self.many_in_flight,
            self.nested_call,
            self.failing_call,
            self.large_tensors,
            self.references,
            self.backward_pass,
            self.backward_with_unused_call,
        ]

    def run(self, seconds: float) -> Counter[str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            work = self.random.choice(self.kinds)
            work()
            self.done[work.__name__] += 1
        HELD.clear()
        return self.done

    def somebody(self) -> str:
        return self.random.choice(self.names)

    def small_calls(self) -> None:
        to = self.somebody()
        for number in range(20):
            tensor = torch.full((4,), float(number))
            assert rpc.rpc_sync(to, scale, args=(tensor, 2.0)).tolist() == 4 * [2.0 * number]

    def many_in_flight(self) -> None:
        futures = [rpc.rpc_async(self.somebody(), abs, args=(-number,)) for number in range(64)]
        assert torch.futures.wait_all(futures) == list(range(64))

    def nested_call(self) -> None:
        number = self.random.randrange(1000)
        first, second = self.somebody(), self.somebody()
        assert rpc.rpc_sync(first, ask_another, args=(second, -number)) == number

    def failing_call(self) -> None:
        text = str(self.random.random())
        with pytest.raises(KeyError, match=text):
            rpc.rpc_sync(self.somebody(), refuse, args=(text,))

    def large_tensors(self) -> None:
        size = self.random.randrange(1, 3 * MEGABYTE_OF_FLOATS)
        tensor = torch.full((size,), 3.0)
        future = rpc.rpc_async(self.somebody(), scale, args=(tensor, 2.0))
        assert rpc.rpc_sync(self.somebody(), overwrite, args=(tensor.clone(),)).eq(0).all()
        result = future.wait()
        assert result.eq(6).all()
        result.zero_()
        assert tensor.eq(3).all()

    def references(self) -> None:
        size = self.random.choice([4, 1000, MEGABYTE_OF_FLOATS])
        rref = rpc.remote(self.somebody(), torch.ones, args=(size,))
        assert rpc.rpc_sync(self.somebody(), fetch, args=(rref,)) == size
        HELD.append(rref)
        if len(HELD) > 10:
            forgotten = HELD.pop(self.random.randrange(len(HELD)))
            assert forgotten.to_here()[0] == 1

    def backward_pass(self) -> None:
        size = self.random.choice([4, 100_000])
        factors = [self.random.choice([0.5, 2.0]) for _ in range(self.random.randrange(1, 4))]
        leaf = torch.ones(size, requires_grad=True)
        with dist_autograd.context() as context_id:
            hidden, expected = leaf * 2, 2.0
            for factor in factors:
                hidden = rpc.rpc_sync(self.somebody(), scale, args=(hidden, factor)) + hidden
                expected *= factor + 1
            dist_autograd.backward(context_id, [hidden.sum()])
            assert dist_autograd.get_gradients(context_id)[leaf].eq(expected).all()

    def backward_with_unused_call(self) -> None:
        leaf = torch.ones(4, requires_grad=True)
        with dist_autograd.context() as context_id:
            rpc.rpc_sync(self.somebody(), scale, args=(leaf, 3.0))
            used = rpc.rpc_sync(self.somebody(), scale, args=(leaf, 5.0))
            dist_autograd.backward(context_id, [used.sum()])
            assert dist_autograd.get_gradients(context_id)[leaf].eq(5).all()


def run_work(seconds: float, seed: int, names: list[str]) -> Counter[str]:
    rank = rpc.get_worker_info().id
    return Work(seed * WORKERS + rank, names).run(seconds)


# ---------------------------------------------------------------- what is left


@dataclass(frozen=True)
class Inventory:
    """What a worker holds when all work is done."""

    references: str
    contexts: int
    threads: int
    descriptors: Counter[str]
    memory_mb: float
    in_use_mb: float
    """Of the heaps: what was asked of them and not given back."""
    segments: PoolStatistics
    """That this worker lends to others."""
    mappings: int
    """Of shared memory, its own and what it was lent."""

    @property
    def is_settled(self) -> bool:
        return not (self.contexts or self.segments.lent) and self.references == NO_REFERENCES


def take_inventory(most_threads: int) -> Inventory:
    """When nothing changes any more, or after a while in any case."""
    deadline, pause = time.monotonic() + SETTLE_SECONDS, threading.Event()
    while time.monotonic() < deadline:
        inventory = _inventory()
        if inventory.is_settled and inventory.threads <= most_threads:
            break
        pause.wait(0.1)
    return _inventory()


def _inventory() -> Inventory:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    worker = current_worker()
    statistics = worker.service(ReferenceService).statistics()
    return Inventory(
        f"{statistics.owned} values, {statistics.forks} forks, {statistics.used} used, "
        f"{statistics.pending} pending",
        len(list(worker.service(AutogradService).contexts)),
        len(os.listdir("/proc/self/task")),
        Counter(_kind_of(descriptor) for descriptor in Path("/proc/self/fd").iterdir()),
        _private_mb(),
        _in_use_mb(),
        worker.service(SegmentPool).statistics(),
        Path("/proc/self/maps").read_text().count(f"/memfd:{SEGMENT_NAME} "),
    )


def _kind_of(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor).partition(":")[0]
    except OSError:  # that of the listing
        return ""


def _private_mb() -> float:
    summary = Path("/proc/self/smaps_rollup").read_text()
    return sum(map(int, re.findall(r"^Private_\w+:\s+(\d+) kB", summary, re.MULTILINE))) / 1024


class _HeapFigures(ctypes.Structure):
    """What `mallinfo2` of the C library says, in bytes."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    )


def _in_use_mb() -> float:
    """0 where the C library does not say."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0.0
    ask.restype = _HeapFigures
    figures = ask()
    return (figures.uordblks + figures.hblkhd) / (1 << 20)


# ---------------------------------------------------------------- the tests


def soak(seconds: float, most_threads: int, most_growth_mb: float) -> list[int]:
    """Two halves; how many mappings of shared memory all workers have after each."""
    first = second = seconds / 2  # pools and heaps of four workers take a minute to be warm
    with ProcessCluster(WORKERS, timeout_seconds=seconds + 60) as cluster:
        cluster.run_all(run_work, first, 1, cluster.names)
        before = cluster.run_all(take_inventory, most_threads)
        done = cluster.run_all(run_work, second, 2, cluster.names)
        after = cluster.run_all(take_inventory, most_threads)
    assert all(len(each) == 8 for each in done), done
    for earlier, later in zip(before, after, strict=True):
        assert later.references == NO_REFERENCES
        assert later.contexts == 0
        assert later.threads <= most_threads
        assert later.segments.made > 0
        assert later.segments.lent == 0
        assert later.segments.bytes <= later.segments.capacity_bytes
        more = later.descriptors - earlier.descriptors
        assert more.total() <= 8, f"{more} more descriptors"
        growth = later.in_use_mb - earlier.in_use_mb
        assert growth <= MOST_KEPT_MB, f"keeps {growth:.1f} MB: {earlier} -> {later}"
        growth = later.memory_mb - earlier.memory_mb  # with what heaps have ready
        assert growth <= most_growth_mb, f"grew by {growth:.1f} MB: {earlier} -> {later}"
    # Who has lent a segment maps it as long as it is in the pool, who was lent it until another one
    # gets its number.
    blocks, made = (sum(getattr(each.segments, of) for each in after) for of in ("blocks", "made"))
    mappings = [sum(each.mappings for each in inventories) for inventories in (before, after)]
    assert mappings[1] <= blocks + made + TABLES, f"{before} -> {after}"
    return mappings


def test_a_short_soak_is_right_and_leaves_nothing() -> None:
    # Too short for idle threads to go and for pools to be full: leaks of references show all the
    # same, and those of memory where they are large.
    soak(4.0, most_threads=40, most_growth_mb=150.0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_long_soak_is_right_and_leaves_nothing(request) -> None:
    seconds = request.config.getoption("--soak-seconds")
    mappings = soak(seconds, most_threads=10, most_growth_mb=48.0)
    # Dozens of segments are given up in each half, and others made in their place: how many there
    # are at a moment depends on who stood still before.
    assert mappings[1] - mappings[0] <= 64 * WORKERS, mappings
