"""A program that ends without `shutdown`, again and again, while functions run that the other
worker called. Run as a module with the number of rounds; exits with 0 if no process crashed."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path

import torch

from lockstitch import rpc

BUSY = threading.Event()


def compute_for_ever() -> None:
    ones = torch.ones(1000)
    BUSY.set()
    while True:
        ones = ones * 1.0000001


def wait_for_ever() -> None:
    BUSY.set()
    threading.Event().wait()


def compute_in_callback() -> None:
    future = rpc.rpc_async("worker0", torch.add, (1, 2))
    future.add_done_callback(lambda _future: compute_for_ever())


MODES = (compute_for_ever, wait_for_ever, compute_in_callback)


def live(rank: int, store: str, function) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=store)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        for _ in range(3):
            rpc.rpc_async("worker1", function, timeout=0)
        rpc.rpc_sync("worker1", torch.add, (1, 2), timeout=0)
        os._exit(0)
    BUSY.wait()


def run_round(function) -> list[int]:
    """The exit codes of both processes."""
    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "store").as_uri()
        children = []
        for rank in range(2):
            child = os.fork()
            if child == 0:
                live(rank, store, function)
                sys.exit(0)  # the interpreter is taken down as at any program's end
            children.append(child)
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    torch.set_num_threads(1)
    codes = [run_round(MODES[round_ % len(MODES)]) for round_ in range(int(sys.argv[1]))]
    print(codes)
    os._exit(any(any(pair) for pair in codes))
