"""The same over our backend and over Gloo, in the same processes, for tests that compare."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import distributed

import lockstitch.c10d  # noqa: F401 - makes the backend known
from tests.processes.ranks import RankProcesses

BACKENDS = ("lockstitch", "gloo")
Work = Callable[[int], torch.Tensor]


def begin(rank: int, size: int, file: str, backend: str = "lockstitch") -> None:
    url = f"file://{file}-{backend}"
    distributed.init_process_group(backend, init_method=url, rank=rank, world_size=size)


def results(rank: int, size: int, file: str, works: list[Work]) -> list[dict[str, list[float]]]:
    """What each gives, over each backend."""
    found: list[dict[str, list[float]]] = []
    for backend in BACKENDS:
        begin(rank, size, file, backend)
        found.append({})
        for work in works:
            torch.manual_seed(0)
            found[-1][work.__name__] = work(rank).tolist()
        distributed.barrier()
        distributed.destroy_process_group()
    return found


def compare(works: list[Work], size: int = 2) -> None:
    """Looks whether all ranks get to the bit what they get over Gloo."""
    with RankProcesses(size) as ranks:
        for ours, of_gloo in ranks.run(results, works):
            assert ours.keys() == of_gloo.keys() == {work.__name__ for work in works}
            assert ours == of_gloo
