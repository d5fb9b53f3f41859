"""Large private tensors that are reduced as they pass through rings: against plain torch, over the
memory of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch.collectives import AVERAGE, SUM, Kind, ReduceOp, Reduction, Request
from tests.cluster.collectives.ranks import Ranks
from tests.cluster.collectives.shared_memory.conftest import SIZES

if TYPE_CHECKING:
    from lockstitch.collectives import Session

pytestmark = pytest.mark.usefixtures("short_chunks")

LARGE = 270_001
"""Elements of float32: more than a ring, and no whole number of chunks."""
MIN = Reduction(ReduceOp.MIN)
SCALED = Reduction(ReduceOp.SUM, 3.0, 0.5)
DTYPES = [torch.float32, torch.bfloat16, torch.int32, torch.complex128]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Here the sessions live as long as the module."""


def numbers(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(-50, 50, (count,), generator=generator).to(dtype)


def expected(
    members: list[int], count: int, dtype: torch.dtype, reduction: Reduction
) -> torch.Tensor:
    """By plain torch, in the order of ranks."""
    first, *others = [numbers(each, count, dtype) * reduction.prescale for each in members]
    total = first.to(dtype)
    for each in others:
        other = each.to(dtype)
        total = torch.minimum(total, other) if reduction.op is ReduceOp.MIN else total + other
    if reduction.op is ReduceOp.AVERAGE:
        total = total / len(members)
    if reduction.postscale != 1.0:
        total = (total * reduction.postscale).to(dtype)
    return total


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype is wanted.dtype
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", [SUM, AVERAGE, MIN, SCALED], ids=str)
def test_reduces_in_the_order_of_ranks(
    ranks: Ranks, dtype: torch.dtype, reduction: Reduction
) -> None:
    if reduction is MIN and dtype.is_complex:
        pytest.skip("complex numbers have no order")
    if reduction is AVERAGE and not (dtype.is_floating_point or dtype.is_complex):
        pytest.skip("cut towards zero: see the tests of arithmetic")
    count = 1_200_003 // dtype.itemsize

    def work(session: Session) -> None:
        wanted = expected(list(range(session.size)), count, dtype, reduction)
        mine = numbers(session.rank, count, dtype)
        same(session.wait(session.allreduce(mine, reduction)), wanted)
        same(mine, numbers(session.rank, count, dtype))
        session.wait(session.allreduce(mine, reduction, output=mine))
        same(mine, wanted)

    ranks.run(work)


def test_tensors_of_all_sizes_and_layouts_at_once(ranks: Ranks) -> None:
    counts = [0, LARGE, 1, 2, 600 * 601, 7]

    def work(session: Session) -> None:
        mine = [numbers(session.rank, count) for count in counts]
        mine[4] = mine[4].view(600, 601).t()
        request = Request(
            Kind.ALLREDUCE,
            queue="q",
            tensors=tuple(mine),
            outputs=tuple(mine),
            reduction=SUM,
            is_group=True,
        )
        session.wait(session.submit(request))
        for count, each in zip(counts, mine, strict=True):
            wanted = expected(list(range(session.size)), count, torch.float32, SUM)
            same(each, wanted.view(600, 601).t() if each.ndim > 1 else wanted)

    ranks.run(work)


@pytest.mark.parametrize("size", SIZES)
def test_goes_on_without_a_rank_that_has_joined(size: int) -> None:
    """The first chunks were written for all of them."""
    with Ranks(size + 1, "shared_memory") as ranks:

        def work(session: Session) -> None:
            absent = 1
            if session.rank != absent:
                members = [each for each in range(size + 1) if each != absent]
                for reduction in (SUM, SCALED):
                    mine = numbers(session.rank, LARGE)
                    session.wait(session.allreduce(mine, reduction, output=mine, name="sum"))
                    same(mine, expected(members, LARGE, torch.float32, reduction))
            session.join()

        ranks.run(work)
