"""What can be told to be wrong before any other rank is asked: a `ValueError`, here and now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lockstitch.collectives.arithmetic import can_reduce
from lockstitch.collectives.requests import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.requests import Request

_IN_PIECES = (Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER)
_NEEDS_ROWS = (Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER)


def check(request: Request, process_set: ProcessSet, rank: int) -> None:
    """Raises `ValueError` where a request makes no sense whatever the other ranks submit."""
    process_set.position(rank)
    for tensor in request.tensors:
        _check_tensor(request, tensor)
    if request.kind is Kind.BROADCAST and not process_set.includes(request.root):
        raise ValueError(
            f"root rank {request.root} of {_what(request)} is not in process set "
            f"{process_set.id}, {list(process_set.ranks)} (roots are global ranks)"
        )
    if request.kind is Kind.ALLTOALL or request.splits is not None:
        _check_splits(request, process_set.size)


def check_outputs(request: Request) -> None:
    """Raises `ValueError` where outputs do not fit the tensors."""
    outputs = request.outputs
    if outputs is None or outputs is request.tensors:
        return
    if request.kind in _IN_PIECES:
        _check_pieces(request, outputs)
        return
    if len(outputs) != len(request.tensors):
        raise ValueError(
            f"{_what(request)}: {len(request.tensors)} tensors, {len(outputs)} outputs"
        )
    for tensor, out in zip(request.tensors, outputs, strict=True):
        if out is tensor:
            continue
        if out.shape != tensor.shape or out.dtype != tensor.dtype:
            raise ValueError(
                f"{_what(request)}: an output is {tuple(out.shape)} of {out.dtype}, "
                f"its input {tuple(tensor.shape)} of {tensor.dtype}"
            )


def _check_pieces(request: Request, outputs: Sequence[torch.Tensor]) -> None:
    """Outputs that have other shapes than the tensors."""
    count, rest = divmod(len(outputs), len(request.tensors))
    if not count or rest:
        raise ValueError(f"{_what(request)}: {len(outputs)} outputs for {len(request.tensors)}")
    for index, out in enumerate(outputs):
        tensor = request.tensors[index // count]
        if out.dtype != tensor.dtype or not out.is_contiguous():
            raise ValueError(
                f"{_what(request)}: an output must be contiguous, of {tensor.dtype} as its input; "
                f"it is of {out.dtype} with strides {out.stride()}"
            )


def check_devices(request: Request) -> None:
    """Raises `ValueError` where tensors are on a device that has no memory."""
    for tensor in (*request.tensors, *(request.outputs or ())):
        if tensor.is_meta:
            raise ValueError(
                f"{_what(request)}: a tensor on the meta device has no data; materialise it first "
                "(to_empty)"
            )


def _check_tensor(request: Request, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"{_what(request)}: a {tensor.layout} tensor cannot be sent; make it dense"
        )
    reduction = request.reduction
    if reduction is not None and not can_reduce(tensor.dtype, reduction.op):
        raise ValueError(
            f"{_what(request)}: torch cannot do {reduction.op.value} with {tensor.dtype}"
        )
    if request.kind in _NEEDS_ROWS and tensor.ndim == 0:
        raise ValueError(
            f"{_what(request)}: {request.kind.value} works on rows, but the tensor is a scalar"
        )


def _check_splits(request: Request, size: int) -> None:
    rows = request.tensors[0].shape[0]
    if request.splits is None:
        if rows % size:
            raise ValueError(
                f"{_what(request)}: {rows} rows cannot be dealt out evenly to {size} ranks; "
                "give splits"
            )
        return
    splits = request.splits
    if len(splits) != size or min(splits) < 0 or sum(splits) != rows:
        raise ValueError(
            f"{_what(request)}: splits {list(splits)} must be {size} numbers that add up to "
            f"the {rows} rows of the tensor"
        )


def _what(request: Request) -> str:
    return repr(request.name) if request.name else f"a nameless {request.kind.value}"
