"""Tensors of one request in the same memory: which are told apart, and what is refused."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives.aliasing import are_entangled, check_distinct
from lockstitch.collectives.requests import SUM, Kind, Request

WHOLE = torch.zeros(6, 4)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([WHOLE, WHOLE], True),
        ([WHOLE[:3], WHOLE[2:]], True),
        ([WHOLE[:3], WHOLE[3:]], False),
        ([WHOLE[3:], WHOLE[:3]], False),
        ([WHOLE[:, 0], WHOLE[:, 1]], True),  # they may: not each element is looked at
        ([WHOLE[:2], WHOLE.t()[:, 2:]], False),
        ([WHOLE[:1], WHOLE[1:1], WHOLE[:0]], False),
        ([torch.zeros(3), WHOLE, torch.zeros(0)], False),
        ([torch.zeros(3), torch.zeros(2).to_sparse()], False),
    ],
)
def test_tensors_reduced_in_place_that_overlap_are_found(
    tensors: list[torch.Tensor], expected: bool
) -> None:
    mine = tuple(tensors)
    assert are_entangled(Request(Kind.ALLREDUCE, "x", mine, mine, SUM)) is expected


@pytest.mark.parametrize(
    ("tensor", "out", "expected"),
    [
        (WHOLE, WHOLE, False),
        (WHOLE, WHOLE[:], False),
        (WHOLE[:-1], WHOLE[1:], True),
        (WHOLE[:3], WHOLE[3:], False),
        (WHOLE.view(4, 6), WHOLE.view(6, 4).t(), True),
    ],
)
def test_output_over_another_part_of_its_tensor_is_found(
    tensor: torch.Tensor, out: torch.Tensor, expected: bool
) -> None:
    assert are_entangled(Request(Kind.ALLREDUCE, "x", (tensor,), (out,), SUM)) is expected
    assert not are_entangled(Request(Kind.ALLREDUCE, "x", (tensor,), None, SUM))


def test_outputs_of_which_elements_are_the_same_memory_are_refused() -> None:
    with pytest.raises(ValueError, match=r"this: its result .* strides \(0, 1\)"):
        check_distinct("this", [torch.zeros(3), torch.zeros(3).expand(2, 3)])
    check_distinct("this", [WHOLE.t(), WHOLE[:, ::2], torch.zeros(1, 3).expand(1, 3)])
    check_distinct("this", [torch.zeros(2, 2).to_sparse(), torch.zeros(0, 3).expand(0, 3)])
