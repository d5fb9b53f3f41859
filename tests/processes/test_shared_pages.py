"""Ranks that reduce in place what lies in pages that all of them have mapped, each for itself."""

from __future__ import annotations

import itertools
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed import FileStore

import lockstitch.c10d  # noqa: F401 - makes the backend known
from lockstitch.collectives import (
    AVERAGE,
    SUM,
    ReduceOp,
    Reduction,
    Session,
    SessionOptions,
    open_session,
)
from tests.processes.ranks import RankProcesses

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNT = 300_000
SIZES = (5, 40_000, COUNT)


def by_memmap(path: str) -> torch.Tensor:
    return torch.from_numpy(np.memmap(path, np.float32, "r+"))


def by_from_file(path: str) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=COUNT)


def by_mmap(path: str) -> torch.Tensor:
    with open(path, "r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.float32)


WAYS: list[Callable[[str], torch.Tensor]] = [by_memmap, by_from_file, by_mmap]


def reduce_in_place(session: Session, tensor: torch.Tensor, operation: str) -> None:
    if operation == "broadcast":
        session.wait(session.broadcast(tensor, 1, name=operation, output=tensor))
    elif operation == "group":
        parts = tensor.chunk(2)
        session.wait(session.grouped_allreduce(parts, SUM, name=operation, outputs=parts))
    elif operation == "elsewhere":
        session.wait(session.allreduce(tensor.clone(), SUM, name=operation, output=tensor))
    else:
        reductions = {
            "sum": SUM,
            "average": AVERAGE,
            "maximum": Reduction(ReduceOp.MAX),
            "scaled": Reduction(ReduceOp.SUM, 0.5, 4.0),
        }
        handle = session.allreduce(tensor, reductions[operation], name=operation, output=tensor)
        session.wait(handle)


FACTORS: dict[str, Callable[[int], float]] = {
    "sum": float,
    "average": lambda size: 1.0,
    "maximum": lambda size: 1.0,
    "scaled": lambda size: 2.0 * size,
    "group": float,
    "elsewhere": float,
    "broadcast": lambda size: 1.0,
}


def reduce_shared(rank: int, size: int, file: str, backend: str, path: str) -> list[Any]:
    wrong: list[Any] = []
    options = SessionOptions(backend=backend)  # type: ignore[arg-type]
    with open_session(rank, size, FileStore(file), options) as session:
        for way, (operation, factor) in itertools.product(WAYS, FACTORS.items()):
            whole = way(path)
            for count in SIZES:
                tensor = whole[:count]
                if rank == 0:
                    tensor.fill_(1.5)
                session.barrier()
                reduce_in_place(session, tensor, operation)
                session.barrier()
                if not bool((tensor == 1.5 * factor(size)).all()):
                    wrong.append((way.__name__, operation, count, tensor[:3].tolist()))
                session.barrier()
    return wrong


@pytest.mark.parametrize(
    ("backend", "size"), [("shared_memory", 2), ("shared_memory", 3), ("c10d", 2)]
)
def test_in_place_operations_on_a_page_that_all_ranks_share(
    backend: str, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(4 * COUNT))
    with RankProcesses(size) as ranks:
        assert ranks.run(reduce_shared, backend, str(path)) == [[]] * size


def refuse_read_only(rank: int, size: int, file: str, path: str) -> float:
    with open_session(
        rank, size, FileStore(file), SessionOptions(backend="shared_memory")
    ) as session:
        tensor = torch.from_numpy(np.memmap(path, np.float32, "r"))
        with pytest.raises(ValueError, match="mapped read-only"):
            session.allreduce(tensor, SUM, output=tensor)
        return session.wait(session.allreduce(tensor, SUM)).sum().item()


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_page_that_cannot_be_written_is_refused_before_anything_is_told(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(np.ones(4, np.float32).tobytes())
    with RankProcesses(2) as ranks:
        assert ranks.run(refuse_read_only, str(path)) == [8.0, 8.0]
    assert os.path.exists(path)


def refuse_read_only_results(rank: int, size: int, file: str, path: str) -> list[float]:
    distributed.init_process_group(
        "lockstitch", init_method=f"file://{file}", rank=rank, world_size=size
    )
    page = torch.from_numpy(np.memmap(path, np.float32, "r"))
    ones = torch.ones(4)
    for refused in (
        lambda: distributed.all_gather_into_tensor(page, ones[:2]),
        lambda: distributed.all_gather(list(page.chunk(2)), ones[:2]),
        lambda: distributed.all_to_all_single(page, ones),
        lambda: distributed.reduce_scatter_tensor(page[:2], ones),
        lambda: distributed.all_to_all_single(page.view(2, 2).t(), ones.view(2, 2)),
        lambda: distributed.recv(page, 1 - rank),
    ):
        with pytest.raises(ValueError, match="mapped read-only"):
            refused()
    whole = torch.zeros(8)
    distributed.all_gather_into_tensor(whole, page)
    distributed.destroy_process_group()
    return whole.tolist()


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_process_groups_write_no_results_into_such_a_page(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(np.ones(4, np.float32).tobytes())
    with RankProcesses(2) as ranks:
        assert ranks.run(refuse_read_only_results, str(path)) == [[1.0] * 8] * 2
