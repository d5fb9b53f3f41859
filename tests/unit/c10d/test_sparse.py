"""Sums of sparse tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstitch.c10d import sparse
from lockstitch.collectives import ReduceOp, Reduction
from lockstitch.collectives.rank_names import RankNames
from lockstitch.errors import MismatchError

SUM = Reduction(ReduceOp.SUM)


class Handle:
    """What two ranks have gathered."""

    def __init__(self, *requests: Any) -> None:
        self._parts = [
            torch.cat(parts) for parts in zip(*(r.tensors for r in requests), strict=True)
        ]
        self.rows = [[len(r.tensors[index]) for r in requests] for index in range(3)]

    def result(self) -> list[torch.Tensor]:
        return self._parts


def a_tensor(rows: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.arange(1, 2 * len(rows) + 1).view(-1, 2).to(dtype)
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, (5, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVERAGE])
@pytest.mark.parametrize("rows", [[4, 1, 1], []])
def test_result_is_that_of_dense_tensors(rows: list[int], op: ReduceOp, dtype: Any) -> None:
    if op is ReduceOp.AVERAGE and dtype is torch.int64:
        pytest.skip("no such dtype of a mean")
    tensors = [a_tensor([0, 1], dtype), a_tensor(rows, dtype)]
    dense = sum(each.to_dense() for each in tensors) / (2 if op is ReduceOp.AVERAGE else 1)
    requests = [sparse.allreduce([each], Reduction(op)) for each in tensors]
    outputs = sparse.SparseOutputs(tensors[1], Reduction(op), RankNames())
    assert outputs.are_copied
    outputs.copy_back(Handle(*requests))  # type: ignore[arg-type]
    assert not outputs.are_copied
    assert tensors[1].is_sparse
    assert tensors[1].dtype is dtype
    assert torch.equal(tensors[1].to_dense(), torch.as_tensor(dense, dtype=dtype))


def test_shapes_that_differ_are_told_by_rank() -> None:
    one = a_tensor([0])
    other = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, 2), (6, 2))
    requests = [sparse.allreduce([each], SUM) for each in (one, other)]
    outputs = sparse.SparseOutputs(one, SUM, RankNames([4, 7]))
    with pytest.raises(MismatchError, match=r"\(5, 2\) with 1 .* on rank 4; \(6, 2\) .* on rank 7"):
        outputs.copy_back(Handle(*requests))  # type: ignore[arg-type]


def test_other_operators_and_several_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="SUM and AVG, not max"):
        sparse.allreduce([a_tensor([0])], Reduction(ReduceOp.MAX))
    with pytest.raises(ValueError, match="one sparse tensor at a time"):
        sparse.allreduce([a_tensor([0]), torch.ones(2)], SUM)
    assert sparse.is_sparse([torch.ones(2), a_tensor([0])])
