"""Tensors of one request that lie in the same memory.

A program may hand over one tensor twice, or views that overlap. Every result is to be that of the
values which were there when the operation was submitted. But what is reduced in chunks is written
while other chunks are still to be read: so such requests are performed on copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.collectives.requests import Request


def check_distinct(what: str, outputs: Iterable[torch.Tensor]) -> None:
    """Raises `ValueError` where several elements of an output are the same memory, as in expanded
    tensors: what is to stand there is not defined."""
    for out in outputs:
        if not out.is_contiguous() and _repeats(out):
            raise ValueError(
                f"{what}: its result cannot be written where it is wanted, since that tensor, of "
                f"shape {tuple(out.shape)} and strides {out.stride()}, has the same memory for "
                "several elements, as expand() makes them; give a copy (tensor.clone())"
            )


def _repeats(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and any(
        stride == 0 and length > 1
        for stride, length in zip(tensor.stride(), tensor.shape, strict=True)
    )


def are_entangled(request: Request) -> bool:
    """Returns whether a result may be written where another tensor of the request is still to be
    read, or another result lies. A result in the place of its own tensor is none of that."""
    outputs = request.outputs
    if outputs is None or request.is_packed:
        return False
    if outputs is request.tensors:
        return len(outputs) > 1 and _overlap(map(_extent, outputs))
    extents = [_extent(out) for out in outputs]
    for tensor, out in zip(request.tensors, outputs, strict=False):
        if not _is_same(tensor, out):
            extents.append(_extent(tensor))
    return len(extents) > 1 and _overlap(extents)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first and the last byte behind what a tensor may touch."""
    begin = tensor.data_ptr() if tensor.layout is torch.strided else 0
    if not begin or not tensor.numel():
        return 0, 0
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    last = sum(
        stride * (length - 1) for stride, length in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return begin, begin + (last + 1) * tensor.element_size()


def _overlap(extents: Iterable[tuple[int, int]]) -> bool:
    """Whether any two have memory in common."""
    reached = 0
    for begin, end in sorted(extents):
        if begin < reached:
            return True
        reached = max(reached, end)
    return False
