"""How tensors of several ranks become one: the constants, and what may be said about it."""

from __future__ import annotations

from typing import Final

from lockstitch.collectives import ReduceOp, Reduction
from lockstitch.errors import CollectiveError

__all__ = [
    "Average",
    "Sum",
    "Adasum",
    "Min",
    "Max",
    "Product",
]

Average: Final = ReduceOp.AVERAGE
Sum: Final = ReduceOp.SUM
Adasum: Final = ReduceOp.ADASUM
Min: Final = ReduceOp.MIN
Max: Final = ReduceOp.MAX
Product: Final = ReduceOp.PRODUCT


def reduction_of(
    average: bool | None, op: ReduceOp | None, prescale_factor: float, postscale_factor: float
) -> Reduction:
    """From the arguments of an operation. `average` is the older way to say `op`."""
    if average is not None and op is not None:
        raise ValueError("give either average or op, not both; op is the newer one")
    if op is None:
        op = Sum if average is False else Average
    if not isinstance(op, ReduceOp):
        raise ValueError(f"op must be one of hvd's constants (hvd.Average, hvd.Sum, …), not {op!r}")
    return Reduction(op, prescale_factor, postscale_factor)


def scattered_reduction_of(
    op: ReduceOp, prescale_factor: float, postscale_factor: float
) -> Reduction:
    """The same for a reducescatter. Raises `HorovodInternalError` for Adasum, which needs whole
    tensors."""
    if op is Adasum:
        raise CollectiveError("a reducescatter cannot combine by hvd.Adasum: use an allreduce")
    return reduction_of(None, op, prescale_factor, postscale_factor)
