"""torch's operators as reductions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import distributed

from lockstitch.c10d.reduce_ops import reduction_of
from lockstitch.collectives import AVERAGE, SUM, ReduceOp

OP = distributed.ReduceOp


def test_operators_are_known_as_members_and_as_objects() -> None:
    assert reduction_of(OP.SUM) == reduction_of(OP(OP.SUM)) == SUM
    assert reduction_of(OP.AVG) == AVERAGE
    assert reduction_of(OP.BXOR).op is ReduceOp.BXOR


def test_operator_that_nobody_knows_is_named() -> None:
    with pytest.raises(ValueError, match="median"):
        reduction_of(SimpleNamespace(op="median"))
