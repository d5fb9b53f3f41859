"""A world that workers join and leave at any time, also by dying."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch import rpc
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    from pathlib import Path

SPAWN = multiprocessing.get_context("spawn")


def _options(path: str) -> rpc.TensorPipeRpcBackendOptions:
    return rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}", rpc_timeout=60)


def _guest(path: str, orders: Any) -> None:
    """Joins, and stays until told to go."""
    torch.set_num_threads(1)
    rpc.init_rpc("guest", rank=1, rpc_backend_options=_options(path))
    orders.send("here")
    orders.recv()
    rpc.shutdown()


class Guest:
    def __init__(self, path: str) -> None:
        self.orders, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_guest, args=(path, theirs))
        self.process.start()
        theirs.close()

    def wait_until_here(self) -> None:
        assert self.orders.poll(40)
        assert self.orders.recv() == "here"

    def go(self) -> None:
        self.orders.send("go")
        self.process.join(60)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.orders.close()


@pytest.fixture
def path(tmp_path: Path) -> Any:
    path = str(tmp_path / "store")
    rpc.init_rpc("hub", rank=0, rpc_backend_options=_options(path))
    yield path
    rpc.shutdown()


def test_a_worker_joins_is_called_and_leaves(path: str) -> None:
    guest = Guest(path)
    try:
        guest.wait_until_here()
        assert rpc.rpc_sync("guest", os.getpid) == guest.process.pid
        guest.go()
        with pytest.raises(RuntimeError):
            rpc.rpc_sync("guest", os.getpid)
    finally:
        guest.kill()


def test_another_takes_the_name_of_one_that_died(path: str) -> None:
    first = Guest(path)
    lost = threading.Event()
    try:
        first.wait_until_here()
        assert rpc.rpc_sync("guest", os.getpid) == first.process.pid
        current_worker().agent.on_peer_lost(lambda _worker, _error: lost.set())
        first.kill()
        assert lost.wait(60)
        second = Guest(path)
        try:
            second.wait_until_here()
            assert rpc.rpc_sync("guest", os.getpid) == second.process.pid
            second.go()
        finally:
            second.kill()
    finally:
        first.kill() if first.process.is_alive() else None
