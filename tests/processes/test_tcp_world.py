"""A world whose workers take each other for workers of other hosts, and so talk over TCP."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch import rpc
from lockstitch.rendezvous import hosts

if TYPE_CHECKING:
    from pathlib import Path


def _square(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * tensor


def _peers_are_on_tcp() -> bool:
    from lockstitch.runtime.worker import current_worker  # noqa: PLC0415 - on the callee

    channels = current_worker().agent.peers.channels()
    peers = [getattr(each, "connection").peer for each in channels[1:]]  # noqa: B009
    return any(peer.startswith(("tcp:", "tls:")) for peer in peers)


def _work(rank: int, path: str, tls: bool, outcome: Any) -> None:
    torch.set_num_threads(1)
    hosts.host_identity = lambda: f"host of {rank}"  # type: ignore[attr-defined]
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{path}", address="127.0.0.1", secret="5e" * 32, tls=tls
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        large = torch.arange(200_000.0)
        same = torch.equal(rpc.rpc_sync("worker1", _square, (large,)), large * large)
        outcome.put(same and _peers_are_on_tcp())
    rpc.shutdown()


@pytest.mark.parametrize("tls", [False, True], ids=["sealed", "tls"])
def test_workers_of_different_hosts_talk_over_tcp(tmp_path: Path, tls: bool) -> None:
    if tls:
        pytest.importorskip("cryptography")
    context = multiprocessing.get_context("spawn")
    outcome = context.Queue()
    processes = [
        context.Process(target=_work, args=(rank, str(tmp_path / "store"), tls, outcome))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    try:
        assert outcome.get(timeout=200) is True
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
