"""What workers in these tests run, and how several threads do the same at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from lockstitch import rpc
from lockstitch.rpc.functions import async_execution

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.futures import Future

    from lockstitch.runtime.worker import Worker
    from lockstitch.testing.cluster import LocalCluster

GATE = threading.Event()
AT_GATE = threading.Event()


def close_gate() -> None:
    GATE.clear()
    AT_GATE.clear()


def wait_at_gate() -> str:
    AT_GATE.set()
    assert GATE.wait(30)
    return "through"


def add(a: Any, b: Any, *, c: Any = 0) -> Any:
    return a + b + c


def name_of_worker() -> str:
    return rpc.get_worker_info().name


def fail_with(text: str) -> None:
    raise KeyError(text)


@async_execution
def add_elsewhere(to: str, a: torch.Tensor, b: torch.Tensor) -> Future[torch.Tensor]:
    return rpc.rpc_async(to, torch.add, (a, b))


def pass_on(hops: int, ring: list[str], arrived: str) -> None:
    """Calls the next worker of the ring without waiting for it, and returns."""
    if hops:
        rpc.rpc_async(ring[hops % len(ring)], pass_on, (hops - 1, ring, arrived))
    else:
        ARRIVALS.append(arrived)


ARRIVALS: list[str] = []


def on_all(
    cluster: LocalCluster, function: Callable[[], Any], timeout: float = 30.0
) -> dict[str, Any]:
    """What `function()` returned, or raised, as code of each worker, all at the same time."""
    results: dict[str, Any] = {}

    def run(worker: Worker) -> None:
        with worker.active():
            try:
                results[worker.name] = function()
            except Exception as error:  # noqa: BLE001 - looked at by the test
                results[worker.name] = error

    threads = [threading.Thread(target=run, args=(worker,)) for worker in cluster]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    assert not any(thread.is_alive() for thread in threads)
    return results
