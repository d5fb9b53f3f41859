"""What is computed from all parts; most of it is tested through sessions, on every backend."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives.arithmetic import (
    UNSCALED,
    Scale,
    adasum,
    can_reduce,
    element_count,
    fold,
    result_scale,
    row_ranges,
    scale_,
    scaled_copy,
)
from lockstitch.collectives.requests import AVERAGE, SUM, ReduceOp, Reduction


def test_what_torch_can_do_is_found_out() -> None:
    assert can_reduce(torch.bool, ReduceOp.SUM)
    assert not can_reduce(torch.float8_e4m3fn, ReduceOp.SUM)
    assert not can_reduce(torch.complex64, ReduceOp.MIN)
    assert not can_reduce(torch.int32, ReduceOp.ADASUM)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_fold_goes_in_order(count: int) -> None:
    parts = [torch.randn(9) for _ in range(count)]
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    assert torch.equal(fold(torch.add, parts, torch.empty(9)), expected)


def test_rows_are_dealt_out_evenly() -> None:
    assert row_ranges(7, 3) == [(0, 3), (3, 5), (5, 7)]
    assert row_ranges(1, 3) == [(0, 1), (1, 1), (1, 1)]


def test_orthogonal_gradients_are_added_and_equal_ones_averaged() -> None:
    a, b = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 3.0])
    assert adasum([a, b]).tolist() == [2, 3]
    assert adasum([a, a, a, a]).tolist() == [2, 0]
    assert adasum([a, torch.zeros(2)]).tolist() == [2, 0]


def test_adasum_leaves_its_parts_alone() -> None:
    a, b = torch.tensor([2.0, 0.0]).double(), torch.tensor([1.0, 3.0]).double()
    adasum([a, b])
    assert (a.tolist(), b.tolist()) == ([2, 0], [1, 3])


def test_adasum_of_an_odd_number_takes_the_last_along() -> None:
    a, b, c = torch.eye(3)
    assert adasum([a, b, c]).tolist() == [1, 1, 1]


def test_scales() -> None:
    assert result_scale(SUM, 4) is UNSCALED
    assert result_scale(AVERAGE, 1) is UNSCALED
    assert result_scale(AVERAGE, 4) == Scale(divisor=4)
    assert result_scale(Reduction(ReduceOp.AVERAGE, 9.0, 2.0), 4) == Scale(0.5)
    assert result_scale(Reduction(ReduceOp.SUM, 9.0, 2.0), 4) == Scale(2.0)


@pytest.mark.parametrize("size", [2, 3, 7, 49])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
def test_average_of_equal_numbers_is_that_number(dtype: torch.dtype, size: int) -> None:
    numbers = torch.arange(5, dtype=dtype)
    assert result_scale(AVERAGE, size).apply_(numbers * size).tolist() == [0, 1, 2, 3, 4]


def test_average_of_large_integers_is_exact() -> None:
    large = torch.tensor([2**62 + 3, -(2**62) - 3])
    assert Scale(divisor=3).apply_(large).tolist() == [(2**62 + 3) // 3, -((2**62 + 3) // 3)]
    assert Scale(divisor=3).apply_(torch.tensor([True, False])).tolist() == [True, False]


def test_scaling_of_integers_cuts_towards_zero() -> None:
    assert scale_(torch.tensor([-7, 7]), 0.5).tolist() == [-3, 3]
    assert scale_(torch.tensor([1 + 1j]), 0.5).tolist() == [0.5 + 0.5j]
    out = torch.empty(2, dtype=torch.int32)
    scaled_copy(torch.tensor([5, -5], dtype=torch.int32), 0.5, out)
    assert out.tolist() == [2, -2]


def test_scalars_have_one_element() -> None:
    assert element_count(()) == 1
    assert element_count((3, 0)) == 0
