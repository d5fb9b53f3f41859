"""What an operation computes, from all ranks' parts: plain torch, no communication.

The parts are lists of tensors, one list for each position in the process set, `None` where a rank
has joined. Sums go in the order of positions, so that all ranks get the same bits.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from lockstitch.collectives.copying import copy
from lockstitch.collectives.requests import Description, Kind, ReduceOp, Reduction
from lockstitch.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lockstitch.collectives.requests import Request

Parts = list[list[torch.Tensor] | None]
"""By position in the process set."""

FOLDS: dict[ReduceOp, Callable[..., torch.Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVERAGE: torch.add,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


@functools.cache
def can_reduce(dtype: torch.dtype, op: ReduceOp) -> bool:
    """Returns whether torch knows how to do this with tensors of this type, on the CPU."""
    if op is ReduceOp.ADASUM:
        return dtype.is_floating_point and can_reduce(dtype, ReduceOp.SUM)
    try:
        sample = torch.empty(2, dtype=dtype)
        FOLDS[op](sample, sample, out=sample)
    except (RuntimeError, TypeError):  # NotImplementedError is one
        return False
    return True


class Scale(NamedTuple):
    """What a tensor is multiplied by, or else divided by. Dividing is exact where the quotient is a
    number of the tensor's type; multiplying by a third or by 1/49 is not."""

    factor: float = 1.0
    divisor: int = 1

    def apply_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Scales in place. Quotients of integers are cut towards zero."""
        if self.divisor == 1:
            return scale_(tensor, self.factor)
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            is_power_of_2 = self.divisor & (self.divisor - 1) == 0  # the same bits, sooner
            return tensor.mul_(1 / self.divisor) if is_power_of_2 else tensor.div_(self.divisor)
        if tensor.dtype in _DIVISIBLE:
            return tensor.div_(self.divisor, rounding_mode="trunc")
        return tensor.copy_(tensor.to(torch.float64).div_(self.divisor))


UNSCALED: Final = Scale()
_DIVISIBLE: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def result_scale(reduction: Reduction, set_size: int) -> Scale:
    """Returns what is done to the folded parts at the end; `UNSCALED` if nothing."""
    postscale = reduction.postscale
    if reduction.op is not ReduceOp.AVERAGE or set_size == 1:
        return UNSCALED if postscale == 1.0 else Scale(postscale)
    return Scale(divisor=set_size) if postscale == 1.0 else Scale(postscale / set_size)


def scale_(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiplies in place. Integers are scaled in double precision and cut towards zero."""
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.mul_(factor)
    return tensor.copy_(tensor.to(torch.float64).mul_(factor))


def scaled_copy(source: torch.Tensor, factor: float, out: torch.Tensor) -> None:
    """`out = source * factor`, from any layout and device into `out`."""
    if factor == 1.0:
        copy(out, source)
    elif source.dtype.is_floating_point and source.device == out.device:
        torch.mul(source, factor, out=out)
    else:
        scale_(out.copy_(source), factor)


def fold(
    combine: Callable[..., torch.Tensor], parts: Sequence[torch.Tensor], out: torch.Tensor
) -> torch.Tensor:
    """The parts, of one shape, combined in their order; `out` may be the first of them."""
    if len(parts) == 1:
        return out if out is parts[0] else out.copy_(parts[0])
    combine(parts[0], parts[1], out=out)
    for part in parts[2:]:
        combine(out, part, out=out)
    return out


def adasum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Adaptive summation (Maleki et al., 2020): neighbours are combined, then pairs of them."""
    level = [part.reshape(-1) for part in parts]
    while len(level) > 1:
        pairs = [_adapted_sum(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0].view(parts[0].shape)


def _adapted_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Orthogonal gradients are added, parallel ones averaged."""
    wide_a, wide_b = a.double(), b.double()
    dot = float(torch.dot(wide_a, wide_b))
    of_a, of_b = float(torch.dot(wide_a, wide_a)), float(torch.dot(wide_b, wide_b))
    weight_a = 1.0 - dot / (2 * of_a) if of_a > 0 else 1.0
    weight_b = 1.0 - dot / (2 * of_b) if of_b > 0 else 1.0
    # Not in place: what is wide enough already is the rank's own tensor, which others read, too.
    return wide_a.mul(weight_a).add_(wide_b, alpha=weight_b).to(a.dtype)


def reduce(
    reduction: Reduction, parts: Sequence[torch.Tensor], set_size: int, out: torch.Tensor
) -> torch.Tensor:
    """Reduces parts that are prescaled already into `out`, of the same shape and any layout."""
    if reduction.op is ReduceOp.ADASUM:
        out.copy_(adasum(parts))
    elif out.device == parts[0].device:
        fold(FOLDS[reduction.op], parts, out)
    else:
        out.copy_(fold(FOLDS[reduction.op], parts, torch.empty_like(parts[0])))
    return result_scale(reduction, set_size).apply_(out)


# ---------------------------------------------------------------- rows


def row_ranges(
    rows: int, set_size: int, splits: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """How rows are dealt out: by `splits`, else evenly, the first positions get one more where it
    does not go up."""
    if splits is not None:
        return list(itertools.pairwise(itertools.accumulate(splits, initial=0)))
    share, rest = divmod(rows, set_size)
    begins = [share * position + min(position, rest) for position in range(set_size + 1)]
    return list(itertools.pairwise(begins))


def splits_of(description: Description, set_size: int) -> tuple[int, ...]:
    """Returns how many rows an alltoall sends to each position."""
    if description.splits is not None:
        return description.splits
    return (description.shapes[0][0] // set_size,) * set_size


# ---------------------------------------------------------------- operations


def combine(
    request: Request, described: Sequence[Description | None], parts: Parts, position: int
) -> list[torch.Tensor]:
    """Returns what the rank at `position` gets out of the operation, in its outputs if it has named
    some.

    No part may share memory with the outputs. The parts are prescaled already.
    """
    return _OPERATIONS[request.kind](request, described, parts, position)


def _allreduce(
    request: Request, _described: Sequence[Description | None], parts: Parts, _position: int
) -> list[torch.Tensor]:
    assert request.reduction is not None
    present = [part for part in parts if part is not None]
    outputs = outputs_of(request)
    for index, out in enumerate(outputs):
        reduce(request.reduction, [part[index] for part in present], len(parts), out)
    return outputs


def _reducescatter(
    request: Request, _described: Sequence[Description | None], parts: Parts, position: int
) -> list[torch.Tensor]:
    assert request.reduction is not None
    outputs = []
    for index, tensor in enumerate(request.tensors):
        begin, end = row_ranges(tensor.shape[0], len(parts), request.splits)[position]
        whole = [part[index] for part in parts if part is not None]
        if request.reduction.op is ReduceOp.ADASUM:
            mine = [torch.empty_like(whole[0])]
            mine = [reduce(request.reduction, whole, len(parts), mine[0])[begin:end]]
            outputs.append(mine[0].to(tensor.device, copy=True))
            continue
        rows = [each[begin:end] for each in whole]
        if request.outputs is None:
            out = torch.empty_like(rows[0], device=tensor.device)
        else:
            out = request.outputs[index]
        outputs.append(reduce(request.reduction, rows, len(parts), out))
    return outputs


def _allgather(
    request: Request, described: Sequence[Description | None], parts: Parts, _position: int
) -> list[torch.Tensor]:
    results, wanted = gathering(request, described)
    for index in range(len(request.tensors)):
        pieces = [part[index] for part in parts if part is not None]
        deliver(wanted[index * len(pieces) : (index + 1) * len(pieces)], pieces)
    return results


def gathering(
    request: Request, described: Sequence[Description | None]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the results of an allgather, and where the piece of each rank goes: for each tensor
    one behind the other."""
    if request.outputs is not None:
        return list(request.outputs), list(request.outputs)
    results: list[torch.Tensor] = []
    wanted: list[torch.Tensor] = []
    for tensor, rows in zip(request.tensors, rows_gathered(described), strict=True):
        results.append(tensor.new_empty((sum(rows), *tensor.shape[1:])))
        wanted += torch.split(results[-1], list(rows))
    return results, wanted


def _broadcast(
    request: Request, _described: Sequence[Description | None], parts: Parts, position: int
) -> list[torch.Tensor]:
    if parts[position] and request.outputs is request.tensors:
        return list(request.tensors)  # the root's own
    (source,) = [part for part in parts if part]
    outputs = outputs_of(request)
    for out, part in zip(outputs, source, strict=True):
        copy(out, part)
    return outputs


def _alltoall(
    request: Request, described: Sequence[Description | None], parts: Parts, position: int
) -> list[torch.Tensor]:
    pieces = []
    for part, description in zip(parts, described, strict=True):
        assert part is not None
        assert description is not None
        splits = splits_of(description, len(parts))
        begin = sum(splits[:position])
        pieces.append(part[0][begin : begin + splits[position]])
    results, wanted = exchanging(request, described, position)
    deliver(wanted, pieces)
    return results


def exchanging(
    request: Request, described: Sequence[Description | None], position: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the results of an alltoall for the rank at `position`, and where the rows of each
    rank go."""
    if request.outputs is not None:
        return list(request.outputs), list(request.outputs)
    (tensor,) = request.tensors
    rows = [splits_of(each, len(described))[position] for each in described if each is not None]
    out = tensor.new_empty((sum(rows), *tensor.shape[1:]))
    return [out, torch.tensor(rows, dtype=torch.int32)], list(torch.split(out, rows))


def check_delivery(wanted: Sequence[torch.Tensor], counts: Iterable[int]) -> None:
    """Raises `MismatchError` where a rank sends another number of elements than are wanted."""
    for position, (out, count) in enumerate(zip(wanted, counts, strict=True)):
        if out.numel() != count:
            raise MismatchError(
                f"position {position} has sent {count} elements where this rank expects "
                f"{out.numel()}"
            )


def deliver(wanted: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> None:
    """Copies what came from each position to where it is wanted. Raises `MismatchError`, before
    anything is written, where a rank has sent another number of elements."""
    check_delivery(wanted, (piece.numel() for piece in pieces))
    for out, piece in zip(wanted, pieces, strict=True):
        copy(out.view(piece.shape), piece)


def _nothing(*_arguments: object) -> list[torch.Tensor]:
    return []


_OPERATIONS: dict[Kind, Callable[..., list[torch.Tensor]]] = {
    Kind.ALLREDUCE: _allreduce,
    Kind.ALLGATHER: _allgather,
    Kind.BROADCAST: _broadcast,
    Kind.ALLTOALL: _alltoall,
    Kind.REDUCESCATTER: _reducescatter,
    Kind.BARRIER: _nothing,
    Kind.ADD_SET: _nothing,
    Kind.REMOVE_SET: _nothing,
}


def outputs_of(request: Request) -> list[torch.Tensor]:
    """Where the results of an operation that keeps shapes go."""
    if request.outputs is not None:
        return list(request.outputs)
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in request.tensors]


def rows_gathered(described: Sequence[Description | None]) -> tuple[tuple[int, ...], ...]:
    """Of an allgather: for each tensor, how many rows come from each position."""
    present = [each for each in described if each is not None]
    return tuple(
        tuple(each.shapes[index][0] for each in present) for index in range(len(present[0].shapes))
    )


def element_count(shape: Sequence[int]) -> int:
    """Returns how many elements a tensor of that shape has."""
    return math.prod(shape)
