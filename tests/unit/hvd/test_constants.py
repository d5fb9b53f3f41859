from __future__ import annotations

import numpy
import pytest

from lockstitch import hvd
from lockstitch.collectives import ReduceOp
from lockstitch.hvd.constants import reduction_of


@pytest.mark.parametrize(
    ("average", "op", "expected"),
    [
        (None, None, ReduceOp.AVERAGE),
        (True, None, ReduceOp.AVERAGE),
        (False, None, ReduceOp.SUM),
        (0, None, ReduceOp.SUM),
        (numpy.bool_(False), None, ReduceOp.SUM),
        ("a name, as some programs have it", None, ReduceOp.AVERAGE),
        (None, hvd.Max, ReduceOp.MAX),
    ],
)
def test_operator_by_either_argument(average, op, expected):
    reduction = reduction_of(average, op, 0.5, 2.0)
    assert (reduction.op, reduction.prescale, reduction.postscale) == (expected, 0.5, 2.0)


def test_both_arguments_are_too_many():
    with pytest.raises(ValueError, match="not both"):
        reduction_of(True, hvd.Sum, 1.0, 1.0)


def test_what_is_no_operator_is_refused():
    with pytest.raises(ValueError, match="constants"):
        reduction_of(None, "sum", 1.0, 1.0)  # type: ignore[arg-type]
