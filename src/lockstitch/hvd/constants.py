"""How tensors of several ranks become one: the constants, and what may be said about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.collectives import ReduceOp, Reduction
from lockstitch.errors import CollectiveError
from lockstitch.hvd.process_sets import size_of

if TYPE_CHECKING:
    from lockstitch.hvd.process_sets import ProcessSet

Average: Final = ReduceOp.AVERAGE
Sum: Final = ReduceOp.SUM
Adasum: Final = ReduceOp.ADASUM
Min: Final = ReduceOp.MIN
Max: Final = ReduceOp.MAX
Product: Final = ReduceOp.PRODUCT
# The same each time are compared sooner.
_UNSCALED: Final = {op: Reduction(op) for op in ReduceOp}


def reduction_of(
    average: bool | None,
    op: ReduceOp | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet | None = None,
) -> Reduction:
    """Makes a reduction from the arguments of an operation. `average` is the older way to say `op`.
    Raises what `require_pairs` does where Adasum is asked for in a process set."""
    if average is not None and op is not None:
        raise ValueError("give either average or op, not both; op is the newer one")
    if op is None:
        op = Average if average is None or average else Sum
    if not isinstance(op, ReduceOp):
        raise ValueError(f"op must be one of hvd's constants (hvd.Average, hvd.Sum, …), not {op!r}")
    if op is Adasum and process_set is not None:
        require_pairs(process_set)
    if prescale_factor == postscale_factor == 1.0:
        return _UNSCALED[op]
    return Reduction(op, prescale_factor, postscale_factor)


def require_pairs(process_set: ProcessSet) -> None:
    """Adasum combines ranks in pairs, then pairs of pairs. Raises `NotImplementedError`, as Horovod
    does, where that does not come out even."""
    size = size_of(process_set)
    if size & (size - 1):
        raise NotImplementedError(
            f"Adasum needs a number of ranks that is a power of two, but {process_set!r} has {size}"
            ": choose another op, or add a process set of fewer ranks"
        )


def scattered_reduction_of(
    op: ReduceOp, prescale_factor: float, postscale_factor: float
) -> Reduction:
    """Makes the reduction of a reducescatter. Raises `HorovodInternalError` for Adasum, which needs
    whole tensors."""
    if op is Adasum:
        raise CollectiveError("a reducescatter cannot combine by hvd.Adasum: use an allreduce")
    return reduction_of(None, op, prescale_factor, postscale_factor)
