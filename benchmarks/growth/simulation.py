"""A world of hundreds of workers in one process, and what they have to say to each other.

Only counts are of interest here: with so many threads in one process times say little.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.testing import LocalCluster

if TYPE_CHECKING:
    from lockstitch.runtime.worker import Worker

_SHUTDOWN_SECONDS = 120.0


@dataclass(frozen=True)
class Counts:
    """What a world of some size took."""

    call_messages: int
    backward_messages: int
    shutdown_messages: int
    shutdown_bytes: int
    most_connections: int
    """Of the worker that has most, in the end."""
    threads_per_worker: float


def simulate(_library: None, size: int) -> Counts:
    """One call and one backward pass from the first worker to the last, then all go together."""
    with LocalCluster(size) as cluster:
        threads = threading.active_count()
        last = cluster.names[-1]
        cluster.run(0, _double_there, last)
        before_call = cluster.traffic()
        cluster.run(0, _double_there, last)
        call = cluster.traffic() - before_call
        cluster.run(0, _backward, last)  # the way back is connected now
        before_backward = cluster.traffic()
        cluster.run(0, _backward, last)
        backward = cluster.traffic() - before_backward
        before_end = cluster.traffic()
        _shut_down_all(cluster)
        end = cluster.traffic() - before_end
        # Whoever waits for over a second asks its neighbours whether they live.
        nudges = end.kinds.get("Announced", 0) - end.kinds.get("Brought", 0)
        return Counts(
            call.messages,
            # The answers to the release of the former context may come before or after.
            backward.messages - backward.kinds.get("ContextReleased", 0),
            end.messages - nudges,
            end.bytes,
            max(cluster.traffic().ends.values()),
            threads / size,
        )


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def _double_there(to: str) -> None:
    rpc.rpc_sync(to, _double, args=(torch.ones(4),))


def _backward(to: str) -> None:
    leaf = torch.ones(4, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(to, _double, args=(leaf,)).sum()
        dist_autograd.backward(context_id, [loss])


def _shut_down_all(cluster: LocalCluster) -> None:
    errors: list[Exception] = []

    def shut_down(worker: Worker) -> None:
        with worker.active():
            try:
                rpc.shutdown(timeout=_SHUTDOWN_SECONDS)
            except RuntimeError as error:
                errors.append(error)

    threads = [threading.Thread(target=shut_down, args=(worker,)) for worker in cluster]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
