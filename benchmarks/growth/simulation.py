"""A world of hundreds of workers in one process, and what they have to say to each other.

Only counts are of interest here: with so many threads in one process times say little. So time
stands still, and nobody asks a slow neighbour whether it lives.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.growth.stores import count_start
from benchmarks.growth.work import WARM_UP_TIMES, Counts, call, counted, find, run_backward
from lockstitch import rpc
from lockstitch.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.clock import Waiter
    from lockstitch.runtime.worker import Worker
    from lockstitch.testing import Traffic


@dataclass(frozen=True)
class SimulatedCounts(Counts):
    """`depth`: how many messages wait for each other, in the longest chain."""

    start_depth: int
    shutdown_depth: int
    most_connections: int
    """Of the worker that has most, in the end."""
    threads_per_worker: float


class StandingClock:
    """A `Clock` on which it is always now: who waits does so for ever, or not at all."""

    def now(self) -> float:
        return 0.0

    def wait(self, waiter: Waiter, timeout_seconds: float | None) -> bool:
        return waiter.wait(0 if timeout_seconds is not None and timeout_seconds <= 0 else None)

    def wait_until(self, waiter: Waiter, deadline: float | None) -> bool:
        return self.wait(waiter, deadline)


def simulate(_library: None, size: int) -> SimulatedCounts:
    """So many workers come; the first one calls the last, and finds all; then all go together."""
    started = count_start(size).asked
    with LocalCluster(size, clock=StandingClock()) as cluster:
        threads = threading.active_count()
        calls = _repeat(cluster, call, cluster.names[-1])
        passes = _repeat(cluster, run_backward, cluster.names[-1])
        found = _repeat(cluster, find, cluster.names)
    with LocalCluster(size, clock=StandingClock()) as cluster:
        _shut_down_all(cluster)
        end = cluster.traffic()
    return SimulatedCounts(
        *counted(calls),
        *counted(passes),
        counted(found)[0],
        started.requests,
        started.bytes,
        end.messages,
        end.bytes,
        started.depth,
        end.depth,
        max(end.ends.values()),
        threads / size,
    )


def _repeat(cluster: LocalCluster, work: Callable[..., None], argument: Any) -> Traffic:
    """What the first worker's last time cost."""
    for _ in range(WARM_UP_TIMES):
        cluster.run(0, work, argument)
    before = cluster.traffic()
    cluster.run(0, work, argument)
    return cluster.traffic() - before


def _shut_down_all(cluster: LocalCluster) -> None:
    def shut_down(worker: Worker) -> None:
        with worker.active():
            rpc.shutdown(timeout=0)

    workers = list(cluster)
    with ThreadPoolExecutor(len(workers)) as threads:
        list(threads.map(shut_down, workers))  # which raises what one of them has raised
