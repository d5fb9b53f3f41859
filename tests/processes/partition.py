"""One of two workers on hosts of their own, between which the network is cut. Arguments: rank,
address, store. Prints a line for each thing that has happened; goes on when it is told so."""

from __future__ import annotations

import os
import sys
import threading
import time

import torch

from lockstitch import rpc
from lockstitch.errors import PeerDiedError

HEARTBEAT_SECONDS = 2.0


def wait_long() -> None:
    threading.Event().wait(600)


def tell(line: str) -> None:
    print(line, flush=True)


def outcome(function, *args) -> str:
    started = time.monotonic()
    try:
        rpc.rpc_sync(OTHER, function, args, timeout=0)
    except PeerDiedError as error:
        return f"{type(error).__name__} after {time.monotonic() - started:.1f} s: {error}"
    return "answered"


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, address, store = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    OTHER = f"worker{1 - rank}"
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=store,
        address=address,
        insecure=True,
        transports=["tcp"],
        heartbeat_timeout=HEARTBEAT_SECONDS,
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    tell(outcome(torch.add, 1, 2))
    tell(outcome(wait_long))
    sys.stdin.readline()  # the network is whole again
    tell(outcome(torch.add, 1, 2))
    sys.stdin.readline()
    os._exit(0)
