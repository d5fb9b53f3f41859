"""torch's reduce operators as reductions of a session."""

from __future__ import annotations

from typing import Any, Final

from torch import distributed

from lockstitch.collectives import ReduceOp, Reduction

_TORCH: Final = distributed.ReduceOp
_MEMBERS: Final[dict[Any, Reduction]] = {
    _TORCH.SUM: Reduction(ReduceOp.SUM),
    _TORCH.AVG: Reduction(ReduceOp.AVERAGE),
    _TORCH.MIN: Reduction(ReduceOp.MIN),
    _TORCH.MAX: Reduction(ReduceOp.MAX),
    _TORCH.PRODUCT: Reduction(ReduceOp.PRODUCT),
    _TORCH.BAND: Reduction(ReduceOp.BAND),
    _TORCH.BOR: Reduction(ReduceOp.BOR),
    _TORCH.BXOR: Reduction(ReduceOp.BXOR),
}
_MEMBER: Final = type(_TORCH.SUM)
# Members are compared by C++, which takes a microsecond.
_BY_VALUE: Final = {member.value: known for member, known in _MEMBERS.items()}


def reduction_of(op: Any) -> Reduction:
    """Returns the reduction that an operator of torch means: a `ReduceOp` or one of its members.
    Raises `ValueError` for an operator that this torch has and Lockstitch does not know.

    A premultiplied sum multiplies each rank's tensor by its factor, a number or a tensor with one
    element, before it is added.
    """
    kind = getattr(op, "op", op)
    known = _BY_VALUE.get(kind.value) if type(kind) is _MEMBER else None
    if known is not None:
        return known
    if kind == _TORCH.PREMUL_SUM:
        _, factor = op.__getstate__()
        return Reduction(ReduceOp.SUM, prescale=float(factor))
    raise ValueError(f"the lockstitch backend does not know the reduce operator {kind}")
