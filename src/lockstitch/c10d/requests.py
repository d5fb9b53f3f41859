"""torch's collectives as requests of a session.

All that a group does is submitted to one queue, so that the kth operation of a rank meets the kth
of every other one, as torch has it. Tensors pass as vectors where only their elements count: torch
lets shapes differ there. What moves rows from one rank, or to one, is an alltoall of which most
shares are empty; a reduction to one rank is a reduce-scatter that leaves it all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from lockstitch.c10d.outputs import Outputs, flat_input, joined, memory_of
from lockstitch.collectives import Kind, Reduction, Request
from lockstitch.collectives.operations import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUE: Final = "collectives"


def allreduce(
    tensors: Sequence[torch.Tensor], reduction: Reduction, *, is_bucket: bool = False
) -> Request:
    """All tensors together, in place; `is_bucket`: see `Buckets`."""
    if len(tensors) == 1:
        (tensor,) = tensors
        mine: tuple[torch.Tensor, ...] = (plain(tensor) if is_bucket else memory_of(tensor),)
        return Request(Kind.ALLREDUCE, "", mine, mine, reduction, queue=QUEUE)
    mine = tuple(map(memory_of, tensors))
    return Request(Kind.ALLREDUCE, "", mine, mine, reduction, queue=QUEUE, is_group=True)


def broadcast(tensors: Sequence[torch.Tensor], root: int) -> Request:
    """The tensors of one rank, in place."""
    mine = tuple(map(memory_of, tensors))
    is_group = len(mine) != 1
    return Request(Kind.BROADCAST, "", mine, mine, None, root, queue=QUEUE, is_group=is_group)


def reduce(
    tensor: torch.Tensor, reduction: Reduction, root: int, rank: int, size: int, outputs: Outputs
) -> Request:
    """To one rank, in place there; the tensors of the others stay as they are."""
    mine = flat_input(tensor)
    result = outputs.flat(tensor) if rank == root else mine[:0]
    splits = tuple(mine.numel() * (position == root) for position in range(size))
    return _reduce_scatter([mine], [result], reduction, splits)


def reduce_scatter(
    wanted: torch.Tensor, tensors: Sequence[torch.Tensor], reduction: Reduction, outputs: Outputs
) -> Request:
    """The ith tensor of all ranks to the ith rank; they may differ in size."""
    splits = tuple(each.numel() for each in tensors)
    return _reduce_scatter([joined(tensors)], [outputs.flat(wanted)], reduction, splits)


def reduce_scatter_evenly(
    wanted: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor],
    reduction: Reduction,
    size: int,
    outputs: Outputs,
) -> Request:
    """Of each tensor the same number of elements to each rank. Raises `ValueError` where an input
    is not as long as the outputs of all ranks together."""
    for out, tensor in zip(wanted, tensors, strict=True):
        if tensor.numel() != out.numel() * size:
            raise ValueError(
                f"reduce_scatter: the input has {tensor.numel()} elements, which must be the "
                f"{out.numel()} of the output times the {size} ranks"
            )
    inputs = [flat_input(each) for each in tensors]
    return _reduce_scatter(inputs, outputs.flats(wanted), reduction, None)


def _reduce_scatter(
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    reduction: Reduction,
    splits: tuple[int, ...] | None,
) -> Request:
    return Request(
        Kind.REDUCESCATTER,
        queue=QUEUE,
        tensors=tuple(inputs),
        outputs=tuple(results),
        reduction=reduction,
        splits=splits,
        is_group=True,
    )


def allgather(
    wanted: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor], outputs: Outputs
) -> Request:
    """Of each tensor the pieces of all ranks, into `wanted[i][position]`; they may differ in their
    first dimension."""
    return Request(
        Kind.ALLGATHER,
        queue=QUEUE,
        tensors=tuple(map(_with_rows, tensors)),
        outputs=tuple(outputs.flat(piece) for pieces in wanted for piece in pieces),
        is_group=True,
    )


def allgather_into(
    wanted: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], size: int, outputs: Outputs
) -> Request:
    """Of each tensor the pieces of all ranks, one behind the other. Raises `ValueError` where an
    output has another size."""
    pieces: list[torch.Tensor] = []
    for out, tensor in zip(wanted, tensors, strict=True):
        if out.numel() != tensor.numel() * size:
            raise ValueError(
                f"allgather: the output has {out.numel()} elements, which must be the "
                f"{tensor.numel()} of the input times the {size} ranks"
            )
        pieces += outputs.flat(out).view(size, tensor.numel()).unbind()
    return Request(
        Kind.ALLGATHER,
        queue=QUEUE,
        tensors=tuple(map(_with_rows, tensors)),
        outputs=tuple(pieces),
        is_group=True,
    )


def gather(
    wanted: Sequence[torch.Tensor], tensor: torch.Tensor, root: int, size: int, outputs: Outputs
) -> Request:
    """To one rank, which alone wants something."""
    mine = flat_input(tensor)
    splits = tuple(mine.numel() * (position == root) for position in range(size))
    return _alltoall(mine, splits, outputs.flats(wanted) or [mine[:0]] * size)


def scatter(
    wanted: torch.Tensor, tensors: Sequence[torch.Tensor], root: int, size: int, outputs: Outputs
) -> Request:
    """From one rank, which alone gives tensors."""
    result = outputs.flat(wanted)
    nothing = result[:0]
    mine = joined(tensors) if tensors else nothing
    splits = tuple(each.numel() for each in tensors) or (0,) * size
    return _alltoall(mine, splits, [result if at == root else nothing for at in range(size)])


def alltoall(
    wanted: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], outputs: Outputs
) -> Request:
    """The ith tensor to the ith rank; they may differ in size."""
    splits = tuple(each.numel() for each in tensors)
    return _alltoall(joined(tensors), splits, outputs.flats(wanted))


def alltoall_rows(
    wanted: torch.Tensor,
    tensor: torch.Tensor,
    received: Sequence[int],
    sent: Sequence[int],
    size: int,
    outputs: Outputs,
) -> Request:
    """So many rows to each rank, and from each; without numbers the same for all. Raises
    `ValueError` where the numbers do not add up."""
    pieces = torch.split(outputs.flat(wanted), _elements(wanted, received, size))
    return _alltoall(flat_input(tensor), tuple(_elements(tensor, sent, size)), pieces)


def _elements(tensor: torch.Tensor, rows: Sequence[int], size: int) -> list[int]:
    """Returns how many elements go to each rank, or come from it."""
    count = tensor.shape[0] if tensor.ndim else 1
    if not rows:
        if count % size:
            raise ValueError(f"alltoall: {count} rows cannot be dealt out evenly to {size} ranks")
        rows = [count // size] * size
    if len(rows) != size or sum(rows) != count or min(rows) < 0:
        raise ValueError(
            f"alltoall: {list(rows)} must be {size} numbers that add up to the {count} rows of the "
            "tensor"
        )
    row = tensor.numel() // count if count else 0
    return [each * row for each in rows]


def _alltoall(
    mine: torch.Tensor, splits: tuple[int, ...], pieces: Sequence[torch.Tensor]
) -> Request:
    return Request(
        Kind.ALLTOALL,
        queue=QUEUE,
        tensors=(mine,),
        outputs=tuple(pieces),
        splits=splits,
        is_group=True,
    )


def barrier() -> Request:
    """Nothing but that all come."""
    return Request(Kind.BARRIER, queue=QUEUE)


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    mine = memory_of(tensor)
    return mine if mine.ndim else mine.view(1)
