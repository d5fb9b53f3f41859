"""Carrying out one order by group operations: from requests to results.

Reductions that the process group can do are packed into one vector, reduced, and unpacked.
Everything else comes down to moving bytes; what is to be computed is then computed by each rank
from all parts (`collectives.arithmetic`), in the same order, so with the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lockstitch.collectives.arithmetic import (
    combine,
    deliver,
    element_count,
    outputs_of,
    result_scale,
    scaled_copy,
    splits_of,
)
from lockstitch.collectives.requests import (
    Description,
    Kind,
    ReduceOp,
    Reduction,
    Request,
    dtype_named,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.c10d.group_operations import GroupOperations
    from lockstitch.collectives.process_sets import ProcessSet

Described = "Sequence[Description | None]"


def perform_bucket(
    requests: Sequence[Request],
    groups: GroupOperations,
    process_set: ProcessSet,
    sent: Sequence[int] = (),
) -> list[list[torch.Tensor]]:
    """Several allreduces of one dtype and reduction as one; returns the results of each. `sent`:
    see `GroupOperations.reduce`."""
    reduction = requests[0].reduction
    assert reduction is not None
    scale = result_scale(reduction, process_set.size)
    results = [outputs_of(request) for request in requests]
    outs = [out for each in results for out in each]
    tensors = [tensor for request in requests for tensor in request.tensors]
    is_apart = requests[0].outputs is None or outs[0] is tensors[0]
    if len(outs) == 1 and is_apart and outs[0].is_contiguous() and outs[0].device == groups.device:
        # In the memory of the result; what a program has named might overlap with what goes in.
        scaled_copy(tensors[0], reduction.prescale, outs[0])
        groups.reduce(outs[0].view(-1), reduction.op, scale, process_set, sent)
        return results
    flat = torch.empty(
        sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype, device=groups.device
    )
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel()
        scaled_copy(tensor, reduction.prescale, flat[begin:end].view(tensor.shape))
        begin = end
    groups.reduce(flat, reduction.op, scale, process_set, sent)
    begin = 0
    for out in outs:
        end = begin + out.numel()
        out.copy_(flat[begin:end].view(out.shape))
        begin = end
    return results


def is_reducible(description: Description, groups: GroupOperations) -> bool:
    """Returns whether an operation is an allreduce that the process group can do."""
    reduction = description.reduction
    return (
        description.kind is Kind.ALLREDUCE
        and reduction is not None
        and reduction.op is not ReduceOp.ADASUM
        and len(set(description.dtypes)) == 1
        and groups.can_reduce(dtype_named(description.dtypes[0]))
    )


def contribute_nothing(
    description: Description, groups: GroupOperations, process_set: ProcessSet
) -> None:
    """The part of a rank that has joined, in an allreduce of the others."""
    assert description.reduction is not None
    if not is_reducible(description, groups):
        return
    dtype = dtype_named(description.dtypes[0])
    count = sum(map(element_count, description.shapes))
    neutral = torch.full(
        (count,), _neutral(description.reduction, dtype), dtype=dtype, device=groups.device
    )
    scale = result_scale(description.reduction, process_set.size)
    groups.reduce(neutral, description.reduction.op, scale, process_set)


def perform(
    request: Request,
    described: Sequence[Description | None],
    groups: GroupOperations,
    me: int,
    of: ProcessSet,
) -> list[torch.Tensor]:
    """Any one operation; `described` by position in the set, `me` this rank's position."""
    if request.kind is Kind.BROADCAST:
        return _broadcast(request, groups, of)
    if request.kind is Kind.ALLTOALL:
        return _alltoall(request, described, groups, me, of)
    if not request.tensors:
        return []
    sizes = [0 if each is None else sum(_byte_counts(each)) for each in described]
    factor = request.reduction.prescale if request.reduction else 1.0
    gathered = groups.gather(_as_bytes(request.tensors, factor, groups.device), sizes, of)
    parts = [
        None if each is None else _from_bytes(content, each)
        for content, each in zip(gathered, described, strict=True)
    ]
    return combine(request, described, parts, me)


def take_part_in_gather(
    described: Sequence[Description | None], groups: GroupOperations, of: ProcessSet
) -> None:
    """The part of a rank that has joined, where the others gather."""
    sizes = [0 if each is None else sum(_byte_counts(each)) for each in described]
    groups.gather(torch.empty(0, dtype=torch.uint8, device=groups.device), sizes, of)


def _broadcast(request: Request, groups: GroupOperations, of: ProcessSet) -> list[torch.Tensor]:
    content = _as_bytes(request.tensors, 1.0, groups.device)
    groups.broadcast(content, of.position(request.root), of)
    outputs = outputs_of(request)
    begin = 0
    for out in outputs:
        end = begin + out.numel() * out.itemsize
        out.copy_(_view(content[begin:end], out.dtype, tuple(out.shape)))
        begin = end
    return outputs


def _alltoall(
    request: Request,
    described: Sequence[Description | None],
    groups: GroupOperations,
    me: int,
    of: ProcessSet,
) -> list[torch.Tensor]:
    (tensor,) = request.tensors
    row = element_count(tensor.shape[1:])
    present = [each for each in described if each is not None]
    splits = [splits_of(each, of.size) for each in present]
    received = [each[me] for each in splits]
    row_bytes = row * tensor.itemsize
    content = groups.exchange(
        _as_bytes((tensor,), 1.0, groups.device),
        [rows * row_bytes for rows in splits[me]],
        [rows * row_bytes for rows in received],
        of,
    )
    out = _view(content, tensor.dtype, (sum(received), *tensor.shape[1:])).to(tensor.device)
    if request.outputs is not None:
        deliver(request.outputs, torch.split(out, received))
        return list(request.outputs)
    return [out, torch.tensor(received, dtype=torch.int32)]


def _as_bytes(tensors: Sequence[torch.Tensor], factor: float, device: torch.device) -> torch.Tensor:
    content = torch.empty(
        sum(tensor.numel() * tensor.itemsize for tensor in tensors),
        dtype=torch.uint8,
        device=device,
    )
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel() * tensor.itemsize
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        scaled_copy(tensor, factor, copy)
        content[begin:end] = copy.view(-1).view(torch.uint8)
        begin = end
    return content


def _from_bytes(content: torch.Tensor, description: Description) -> list[torch.Tensor]:
    found = []
    begin = 0
    for size, shape, dtype in zip(
        _byte_counts(description), description.shapes, description.dtypes, strict=True
    ):
        found.append(_view(content[begin : begin + size], dtype_named(dtype), shape))
        begin += size
    return found


def _view(content: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    # A copy, since the bytes may begin anywhere, and a dtype wants its alignment.
    return content.clone().view(dtype).view(shape)


def _byte_counts(description: Description) -> list[int]:
    return [
        element_count(shape) * dtype_named(dtype).itemsize
        for shape, dtype in zip(description.shapes, description.dtypes, strict=True)
    ]


def _neutral(reduction: Reduction, dtype: torch.dtype) -> float:
    """Returns what changes nothing."""
    if reduction.op is ReduceOp.PRODUCT:
        return 1
    if reduction.op is ReduceOp.BAND:
        return True if dtype is torch.bool else -1 if dtype.is_signed else torch.iinfo(dtype).max
    if reduction.op not in (ReduceOp.MIN, ReduceOp.MAX):
        return 0
    is_least = reduction.op is ReduceOp.MIN
    if dtype is torch.bool:
        return is_least
    if dtype.is_floating_point:
        return float("inf") if is_least else float("-inf")
    limits = torch.iinfo(dtype)
    return limits.max if is_least else limits.min
