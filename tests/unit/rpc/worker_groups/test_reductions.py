"""Results joined by rank: numbers, tensors, structures of them, and what does not fit together."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from lockstitch.ids import WorkerInfo
from lockstitch.rpc.worker_groups.reductions import operation_of, reduce

WORKERS = [WorkerInfo(f"w{rank}", rank) for rank in range(3)]


class Pair(NamedTuple):
    loss: float
    count: int


@pytest.mark.parametrize(
    ("op", "joined"), [("sum", 6), ("mean", 2), ("product", 6), ("max", 3), ("min", 1)]
)
def test_named_operations_join_numbers_and_tensors(op, joined) -> None:
    assert reduce([1, 2, 3], op, WORKERS) == joined
    tensors = [torch.tensor([float(n), -float(n)]) for n in (1, 2, 3)]
    expected = reduce([t.tolist() for t in tensors], op, WORKERS)
    assert reduce(tensors, op, WORKERS).tolist() == expected
    assert tensors[0].tolist() == [1.0, -1.0]  # nothing was written into it


def test_function_is_applied_from_the_lowest_rank_on() -> None:
    assert reduce(["a", "b", "c"], lambda one, other: f"({one}{other})", WORKERS) == "((ab)c)"


def test_structures_are_joined_leaf_by_leaf() -> None:
    results: list[Any] = [{"w": torch.ones(2) * n, "more": [n, (n, 1)]} for n in (1, 2, 3)]
    joined = reduce(results, "sum", WORKERS)
    assert joined["w"].tolist() == [6, 6]
    assert joined["more"] == [6, (6, 3)]
    assert reduce([Pair(1.0, 2), Pair(3.0, 4)], "mean", WORKERS[:2]) == Pair(2.0, 3.0)


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (
            torch.ones(2),
            torch.ones(3),
            r"'w0' and 'w1' .* shape \(2,\) and a tensor of shape \(3,\)",
        ),
        ({"a": 1}, {"b": 1}, r"keys \['a'\] and a dict with keys \['b'\]"),
        ([1], [1, 2], "a list of 1 and a list of 2"),
        ([1], (1,), "a list of 1 and a tuple of 1"),
        ([1], 1, "a list of 1 and a int"),
    ],
)
def test_results_of_different_form_are_refused_with_their_workers(one, other, text) -> None:
    with pytest.raises(ValueError, match=text):
        reduce([one, other], "sum", WORKERS[:2])


def test_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="op is one of 'sum', 'mean'"):
        operation_of("median")
