"""Descriptions: across and back, and what the ranks do not agree about."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives.rank_names import RankNames
from lockstitch.collectives.requests import (
    AVERAGE,
    SUM,
    Description,
    Kind,
    ReduceOp,
    Reduction,
    Request,
    describe,
    disagreement,
    dtype_name,
    dtype_named,
)

REQUESTS = [
    Request(Kind.BARRIER, "b"),
    Request(Kind.ALLREDUCE, "größe/0", (torch.ones(2, 3), torch.ones(())), reduction=AVERAGE),
    Request(Kind.ALLTOALL, "t", (torch.ones(3, dtype=torch.bool),), splits=(1, 2)),
    Request(Kind.BROADCAST, "r", (torch.ones(1),), root=3),
    Request(Kind.ADD_SET, "s", ranks=(0, 2)),
    Request(
        Kind.REDUCESCATTER, "x", (torch.ones(1),), reduction=Reduction(ReduceOp.MAX, 0.1, 1 / 3)
    ),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: r.kind.value)
def test_description_survives_the_crossing(request_: Request) -> None:
    description = describe(request_)
    assert Description.decode(description.encode()) == description


def test_equal_descriptions_are_equal_bytes() -> None:
    first = Request(Kind.ALLREDUCE, "a", (torch.ones(2),), reduction=SUM)
    second = Request(Kind.ALLREDUCE, "a", (torch.zeros(2),), reduction=Reduction(ReduceOp.SUM))
    assert describe(first).encode() == describe(second).encode()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128])
def test_dtype_has_a_name(dtype: torch.dtype) -> None:
    assert dtype_named(dtype_name(dtype)) is dtype


def test_agreement_is_none() -> None:
    d = Description(Kind.BARRIER, "b")
    assert disagreement({0: d, 1: Description(Kind.BARRIER, "b")}) is None


def test_first_difference_is_told_by_ranks() -> None:
    described = {
        0: Description(Kind.BROADCAST, "b", ("float32",), ((1,),), root=0),
        1: Description(Kind.BROADCAST, "b", ("float32",), ((1,),), root=0),
        5: Description(Kind.BROADCAST, "b", ("float32",), ((1,),), root=1),
    }
    assert disagreement(described) == "root rank: 0 on ranks 0, 1; 1 on rank 5"


def test_ranks_are_called_as_people_know_them() -> None:
    described = {rank: Description(Kind.BROADCAST, "b", root=rank) for rank in range(2)}
    assert disagreement(described, RankNames([4, 7])) == "root rank: 4 on rank 4; 7 on rank 7"
