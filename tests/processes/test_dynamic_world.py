"""A world that workers join and leave at any time, also by dying."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch import rpc
from lockstitch.errors import PeerLeftError
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    from pathlib import Path

SPAWN = multiprocessing.get_context("spawn")


def _options(path: str) -> rpc.TensorPipeRpcBackendOptions:
    url = path if "://" in path else f"file://{path}"
    secret = os.environ.get("SECRET_OF_TEST")
    address = None if secret is None else "127.0.0.1"
    return rpc.TensorPipeRpcBackendOptions(
        init_method=url, rpc_timeout=60, address=address, secret=secret
    )


def _guest(path: str, orders: Any) -> None:
    """Joins, and stays until told to go."""
    torch.set_num_threads(1)
    rpc.init_rpc("guest", rank=1, rpc_backend_options=_options(path))
    orders.send(rpc.invitation())
    orders.recv()
    rpc.shutdown()


class Guest:
    def __init__(self, path: str) -> None:
        self.orders, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_guest, args=(path, theirs))
        self.process.start()
        theirs.close()

    def wait_until_here(self) -> None:
        assert self.orders.poll(60)
        self.invitation = self.orders.recv()

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


def test_the_first_leaves_and_comes_back_through_another_over_tcp(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "5e" * 32)
    path = str(tmp_path / "store")
    rpc.init_rpc("hub", rank=0, rpc_backend_options=_options(path))
    first = rpc.get_worker_info()
    guest = Guest(path)
    try:
        guest.wait_until_here()
        assert guest.invitation.startswith("lockstitch://127.0.0.1:")
        kept = rpc.remote("guest", os.getpid)
        assert kept.to_here() == guest.process.pid
        rpc.shutdown()
        rpc.init_rpc("hub", rpc_backend_options=_options(guest.invitation))
        assert rpc.get_worker_info().generation == first.generation + 1
        assert [info.name for info in rpc.get_worker_infos()] == ["hub", "guest"]
        assert rpc.rpc_sync("guest", os.getpid) == guest.process.pid
        rpc.shutdown()
        guest.go()
    finally:
        guest.kill()


def test_a_worker_joins_is_called_and_leaves(path: str) -> None:
    guest = Guest(path)
    try:
        guest.wait_until_here()
        assert rpc.rpc_sync("guest", os.getpid) == guest.process.pid
        guest.go()
        with pytest.raises(PeerLeftError, match="worker 'guest' has left"):
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
