"""What protection costs between two hosts: TCP with nothing, with seals, and inside TLS.

    python -m benchmarks.protection

The three worlds live side by side and take turns, so whatever else the machine does hits all alike.
It takes about half a minute.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from typing import Any

import torch

from lockstitch import rpc
from lockstitch.rpc import joining

_SECRET = "5e" * 32
MODES: dict[str, dict[str, Any]] = {
    "nothing": {"insecure": True},
    "seals": {"secret": _SECRET},
    "TLS": {"secret": _SECRET, "tls": True},
}
_SIZES = {1 << 20: 16, 16 << 20: 6, 256 << 20: 1}
"""Bytes of a tensor sent one way, and how often in a turn."""
_CALLS = 300
_MOST_TURNS = 8
_SECONDS = 20.0


def _world(rank: int, mode: str, folder: str, orders: Any) -> None:
    torch.set_num_threads(1)
    joining.host_identity = lambda: f"host of {rank}"  # type: ignore[attr-defined]
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{folder}/{mode}", address="127.0.0.1", **MODES[mode]
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        tensors = [torch.zeros(size, dtype=torch.uint8) for size in _SIZES]
        while orders.recv():
            took = [_median(abs, -1, _CALLS)]
            for tensor, times in zip(tensors, _SIZES.values(), strict=True):
                took.append(_median(torch.numel, tensor, times))
            orders.send(took)
    rpc.shutdown()


def _median(function: Any, argument: Any, times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        rpc.rpc_sync("worker1", function, (argument,))
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def main() -> None:
    """The command."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        lines, processes = {}, []
        for mode in MODES:
            lines[mode], end = context.Pipe()
            for rank in range(2):
                process = context.Process(target=_world, args=(rank, mode, folder, end))
                process.start()
                processes.append(process)
        taken = _in_turns(lines)
        for line in lines.values():
            line.send(False)
        for process in processes:
            process.join(60)
    plain = _medians(taken["nothing"])
    for mode, turns in taken.items():
        call, *large = _medians(turns)
        figures = "   ".join(
            f"{size >> 20} MiB {size / seconds / 1e9:5.2f} GB/s ({reference / seconds:.2f})"
            for size, seconds, reference in zip(_SIZES, large, plain[1:], strict=True)
        )
        print(f"{mode:8} call {call * 1e6:5.0f} µs ({call / plain[0]:.2f})   {figures}")
    print(f"in brackets: of plain · medians of {len(turns) - 1} turns")


def _in_turns(lines: dict[str, Any]) -> dict[str, list[list[float]]]:
    taken: dict[str, list[list[float]]] = {mode: [] for mode in lines}
    until = float("inf")
    while len(taken["TLS"]) <= _MOST_TURNS and time.monotonic() < until:
        for mode, line in lines.items():
            line.send(True)
            taken[mode].append(line.recv())
        if until == float("inf"):
            until = time.monotonic() + _SECONDS
    return taken


def _medians(turns: list[list[float]]) -> list[float]:
    """The first turn is not counted: there all is cold."""
    return [statistics.median(column) for column in zip(*turns[1:], strict=True)]


if __name__ == "__main__":
    main()
