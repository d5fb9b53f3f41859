"""Programs of reductions that nobody would have thought of, on every backend and by two to four
ranks, each in some mode of torch, against torch in one process."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.cluster.collectives.programs import expected, programs, run
from tests.cluster.collectives.ranks import BACKENDS, BY_ORDERS, BY_SPEAKERS, Ranks

if TYPE_CHECKING:
    from tests.cluster.collectives.programs import Program

SETS = {
    2: [(0, 1)],
    3: [(0, 1, 2), (0, 2), (1, 2)],
    4: [(0, 1, 2, 3), (0, 1), (1, 2), (0, 2, 3), (1, 3)],
}


class World:
    """The ranks, with the process sets of `SETS`, and how many programs they have run."""

    def __init__(self, size: int, backend: str) -> None:
        self.ranks = Ranks(size, backend)
        self.turns = itertools.count()

    def __enter__(self) -> World:
        self.ranks.__enter__()
        whole, *others = SETS[self.ranks.size]
        added = self.ranks.run(lambda s: [s.add_process_set(each).id for each in others])[0]
        self.ids = {whole: 0, **dict(zip(others, added, strict=True))}
        return self

    def __exit__(self, *error: object) -> None:
        self.ranks.__exit__(*error)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """The examples of a test share its sessions."""


@pytest.mark.parametrize(
    ("backend", "size"),
    [(each, 4) for each in (*BACKENDS, *BY_ORDERS, BY_SPEAKERS)]
    + [("shared_memory", 2), ("shared_memory", 3), ("c10d", 3)],
)
def test_any_program_gives_what_torch_gives(backend: str, size: int) -> None:
    with World(size, backend) as world:

        @settings(
            max_examples=settings().max_examples // 5,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(programs(size, SETS[size]))
        def check(program: Program) -> None:
            turn = next(world.turns)
            results = world.ranks.run(lambda s: run(s, program, turn, world.ids))
            for rank, result in enumerate(results):
                for number, value in result.items():
                    if number >= 0:
                        wanted = expected(program, number, rank, turn)
                        assert same(value, wanted), (rank, program.ops[number], value, wanted)
            assert len({result.get(-1) for result in results}) == 1  # who joined last

        check()


def same(value: Any, wanted: Any) -> bool:
    """Whether the result is the one that was wanted, bit by bit."""
    if isinstance(wanted, torch.Tensor):
        return type(value) is torch.Tensor and (
            value.dtype is wanted.dtype and torch.equal(value, wanted) and not value.is_inference()
        )
    if isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(same, value, wanted))
    if isinstance(wanted, tuple):
        tensor, rows = value
        return same(tensor, wanted[0]) and list(rows) == wanted[1]
    return value is wanted
