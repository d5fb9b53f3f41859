"""Ours in the place of the incumbents in whole programs that know nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
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
                with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
                    print("child", *pool.apply(in_a_child))
            print("here", rpc.__name__)
        rpc.shutdown()
"""

OF_PYG = """
    import os

    import torch
    from torch_geometric.distributed import DistContext, LocalFeatureStore, rpc

    if __name__ == "__main__":
        rank = int(os.environ["RANK"])
        context = DistContext(rank, rank, 2, 2, "worker")
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        rpc.init_rpc(context, host, port, rpc_timeout=60.0)
        owners = torch.tensor([0, 1, 0, 1, 1])
        mine = (owners == rank).nonzero().squeeze(1)
        features = LocalFeatureStore.from_data(mine, x=mine.float().unsqueeze(1) * 10)
        features.num_partitions, features.partition_idx = 2, rank
        features.node_feat_pb, features.meta = owners, {"is_hetero": False}
        features.set_rpc_router(rpc.RPCRouter(rpc.rpc_partition_to_workers(context, 2, rank)))
        rpc.global_barrier()
        wanted = torch.tensor([4, 0, 3, 2])
        found = features.lookup_features(wanted, is_node_feat=True).wait()
        print("found", found.flatten().tolist(), "by", rpc.rpc.__name__)
        rpc.shutdown_rpc("program", timeout=60.0)
"""


LAUNCHER = (sys.executable, "-m", "lockstitch", "run", "-n", "2", "--replace", "all")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


def run_program(
    folder: Path, *arguments: str, launcher: tuple[str, ...] = LAUNCHER, program: str = PROGRAM
) -> str:
    """What the workers say."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [*launcher, str(path), *arguments],
        env={**os.environ, "LOCKSTITCH_REPLACE": "all"} if launcher is TORCHRUN else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_program_that_is_not_edited_runs_on_ours(tmp_path: Path) -> None:
    said = run_program(tmp_path)
    assert "weight [0.5, 0.5, 0.5]" in said
    assert "here lockstitch.rpc" in said


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("launcher", [LAUNCHER, TORCHRUN], ids=["lockstitch", "torchrun"])
def test_its_children_run_on_ours_too(
    tmp_path: Path, start: str, launcher: tuple[str, ...]
) -> None:
    said = run_program(tmp_path, start, launcher=launcher)
    assert "weight [0.5, 0.5, 0.5]" in said
    assert "child lockstitch.rpc lockstitch.hvd.synchronous lockstitch.nn.data_parallel" in said
    assert "here lockstitch.rpc" in said


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("torch_geometric") is None,
    reason="torch_geometric is not installed: pip install torch_geometric",
)
def test_features_of_a_graph_are_fetched_by_a_library_that_is_not_edited(tmp_path: Path) -> None:
    said = run_program(tmp_path, program=OF_PYG)
    assert said.count("found [40.0, 0.0, 30.0, 20.0] by lockstitch.rpc") == 2


def test_launcher_lists_what_can_be_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockstitch", "run", "-n", "2", "--replace", "mpi", "x.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "torch-rpc, horovod, data-parallel" in " ".join(done.stderr.split())
