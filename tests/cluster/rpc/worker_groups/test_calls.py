"""How one of the calls of a group is made, and what each worker gets as its arguments."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lockstitch import rpc
from lockstitch.rpc.worker_groups.calls import OfOneWorker, begin_call, for_each


class Rank(OfOneWorker):
    """Each worker gets its own rank."""

    def part_of(self, worker: rpc.WorkerInfo) -> object:
        return worker.id


def test_each_worker_gets_its_part(cluster) -> None:
    workers = list(rpc.group())[2:]
    assert for_each(workers, max, (1, Rank()), {"x": Rank(), "y": 5}) == [
        (max, (1, 2), {"x": 2, "y": 5}),
        (max, (1, 3), {"x": 3, "y": 5}),
    ]
    assert for_each(workers, max, [1], None) == [(max, (1,), None)] * 2
    assert rpc.group().call(max, (0, Rank())) == [0, 1, 2, 3]


def test_what_cannot_be_sent_raises_at_first_and_fails_one_later(cluster) -> None:
    worker, call = rpc.get_worker_info("worker1"), (print, (threading.Lock(),), None)
    with pytest.raises(RuntimeError, match="cannot send"):
        begin_call(worker, call, -1)
    future = begin_call(worker, call, -1, is_first=False)
    with pytest.raises(RuntimeError, match="cannot send"):
        future.wait()


def test_calls_are_ranges_of_the_profiler(cluster) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        rpc.group()[:2].call(torch.add, (1, 1))
    names = [event.key for event in profiler.key_averages()]
    assert sum("rpc_async#" in each and "add" in each for each in names) == 2
