"""What protection costs between two hosts: TCP with nothing, with seals, and inside TLS.

    python -m benchmarks.protection

The three worlds live side by side and take turns, so whatever else the machine does hits all alike.
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
from lockstitch.rpc import places

_SECRET = "5e" * 32
MODES: dict[str, dict[str, Any]] = {
    "nothing": {"insecure": True},
    "seals": {"secret": _SECRET},
    "TLS": {"secret": _SECRET, "tls": True},
}
_LARGE_BYTES = 16 << 20


def _world(rank: int, mode: str, folder: str, orders: Any) -> None:
    torch.set_num_threads(1)
    places.host_identity = lambda: f"host of {rank}"  # type: ignore[attr-defined]
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{folder}/{mode}", address="127.0.0.1", **MODES[mode]
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        large = torch.zeros(_LARGE_BYTES, dtype=torch.uint8)
        while orders.recv():
            orders.send((_median(abs, -1, 300), _median(torch.numel, large, 8)))
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
        taken: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
        for _ in range(8):
            for mode, line in lines.items():
                line.send(True)
                taken[mode].append(line.recv())
        for line in lines.values():
            line.send(False)
        for process in processes:
            process.join(60)
    plain = [statistics.median(column) for column in zip(*taken["nothing"][1:], strict=True)]
    for mode, rounds in taken.items():
        call, large = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
        print(
            f"{mode:8} call {call * 1e6:6.0f} µs ({call / plain[0]:.2f} of plain)   "
            f"16 MiB {_LARGE_BYTES / large / 1e9:5.2f} GB/s ({plain[1] / large:.2f} of plain)"
        )


if __name__ == "__main__":
    main()
