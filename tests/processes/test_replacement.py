"""Ours in the place of the incumbents in whole programs that know nothing of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
    import multiprocessing
    import os
    import sys

    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc
    from torch.distributed.optim import DistributedOptimizer
    from torch.distributed.rpc import RRef, remote, rpc_sync
    from torch._C._distributed_rpc import PyRRef


    def in_a_child():
        import horovod.torch as hvd
        from torch.distributed import rpc

        return rpc.__name__, hvd.allreduce.__module__, torch.nn.DataParallel.__module__


    if __name__ == "__main__":
        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 0:
            weight = remote("worker1", torch.ones, args=(3,), kwargs={"requires_grad": True})
            assert type(weight) is PyRRef, type(weight)
            optimizer = DistributedOptimizer(torch.optim.SGD, [weight], lr=0.5)
            with dist_autograd.context() as context_id:
                dist_autograd.backward(context_id, [weight.to_here().sum()])
                optimizer.step(context_id)
            print("weight", weight.to_here().tolist())
            if len(sys.argv) > 1:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print("child", *pool.apply(in_a_child))
            print("here", rpc.__name__)
        rpc.shutdown()
"""


def run_program(folder: Path, *arguments: str) -> list[str]:
    """What worker 0 says."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "-m", "lockstitch", "run", "-n", "2", "--replace", "all", str(path)]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.split(" ", 1)[1] for line in done.stdout.splitlines()]


def test_program_that_is_not_edited_runs_on_ours(tmp_path: Path) -> None:
    assert run_program(tmp_path) == ["weight [0.5, 0.5, 0.5]", "here lockstitch.rpc"]


@pytest.mark.slow
def test_its_children_run_on_ours_too(tmp_path: Path) -> None:
    assert run_program(tmp_path, "with a child") == [
        "weight [0.5, 0.5, 0.5]",
        "child lockstitch.rpc lockstitch.hvd.synchronous lockstitch.nn.data_parallel",
        "here lockstitch.rpc",
    ]


def test_launcher_lists_what_can_be_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockstitch", "run", "-n", "2", "--replace", "mpi", "x.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "torch-rpc, horovod, data-parallel" in " ".join(done.stderr.split())
