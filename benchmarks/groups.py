"""Calls of a group of workers of one host, beside loops of calls, ours and torch's.

    python -m benchmarks.groups [--workers 8] [--seconds 20]

The four take turns, one round each; the figures are medians, in milliseconds. *One* is a call of
one worker, with the same argument. The function looks at one element of what it is given, so that
what is measured is how the argument gets there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from typing import TYPE_CHECKING

import torch
from torch.distributed import rpc as torch_rpc

from lockstitch import rpc

if TYPE_CHECKING:
    from collections.abc import Callable

KB, MB = 1 << 10, 1 << 20
SIZES = {"nothing": 0, "4 KB": 4 * KB, "1 MB": MB, "64 MB": 64 * MB}
_LEAST_ROUNDS = 5


def look(tensor: torch.Tensor) -> float:
    """What is called."""
    return float(tensor[0]) if len(tensor) else 0.0


def _ways(names: list[str], tensor: torch.Tensor) -> dict[str, Callable[[], object]]:
    group, args = rpc.group(names), (tensor,)

    def loop() -> object:
        return rpc.wait_all([rpc.rpc_async(name, look, args=args) for name in names])

    def theirs() -> object:
        return torch.futures.wait_all(
            [torch_rpc.rpc_async(name, look, args=args) for name in names]
        )

    return {
        "one": lambda: rpc.rpc_sync(names[0], look, args=args),
        "group": lambda: group.call(look, args),
        "loop": loop,
        "torch's loop": theirs,
    }


def measure(names: list[str], nbytes: int, seconds: float) -> dict[str, float]:
    """The median of each way, in milliseconds."""
    ways = _ways(names, torch.ones(nbytes // 4))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
        way()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["one"]) < _LEAST_ROUNDS:
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - began)
    return {name: 1e3 * statistics.median(each) for name, each in times.items()}


def _work(rank: int, size: int, folder: str, seconds: float) -> None:
    torch.set_num_threads(1)
    name = f"worker{rank}"
    for library, file in ((rpc, "ours"), (torch_rpc, "theirs")):
        options = library.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/{file}")
        library.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)
    if rank == 0:
        print(f"{size - 1} workers of one host, {os.cpu_count()} processors")
        print(f"{'':8}{'one':>9}{'group':>9}{'loop':>9}{'torch':>9}   group/one  group/torch")
        names = [f"worker{each}" for each in range(1, size)]
        for label, nbytes in SIZES.items():
            one, group, loop, theirs = measure(names, nbytes, seconds / len(SIZES)).values()
            print(
                f"{label:8}{one:9.2f}{group:9.2f}{loop:9.2f}{theirs:9.2f}"
                f"{group / one:12.2f}{group / theirs:13.2f}",
                flush=True,
            )
    torch_rpc.shutdown()
    rpc.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        size = options.workers + 1
        workers = [
            context.Process(target=_work, args=(rank, size, folder, options.seconds))
            for rank in range(size)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
