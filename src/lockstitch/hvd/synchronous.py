"""Every operation in the form that returns its result. Gradients pass through those that make new
tensors (`gradients` says how); a name ending in an underscore works in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lockstitch.collectives import AVERAGE, Reduction
from lockstitch.hvd.asynchronous import begin
from lockstitch.hvd.compression import Compression
from lockstitch.hvd.constants import Average, reduction_of, scattered_reduction_of
from lockstitch.hvd.gradients import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    ReduceScatter,
    Terms,
)
from lockstitch.hvd.job import current_session
from lockstitch.hvd.process_sets import ProcessSet, global_process_set, id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives import ReduceOp
    from lockstitch.hvd.compression import Compressor

__all__ = [
    "allreduce",
    "allreduce_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "broadcast_",
    "alltoall",
    "reducescatter",
    "grouped_reducescatter",
]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensors of all ranks, of one shape and dtype, reduced by `op` (the average unless said
    otherwise), the same on all ranks."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    terms = _terms("allreduce", name, process_set, reduction)
    sent, note = compression.compress(tensor)
    return compression.decompress(AllReduce.apply(terms, False, sent), note)  # type: ignore[no-untyped-call]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Like `allreduce`, in place."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    return begin(
        current_session().allreduce, tensor, reduction, name, process_set, output=tensor
    ).wait()


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Like `allreduce` for several tensors as one operation: all of them or none."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    terms = _terms("grouped_allreduce", name, process_set, reduction)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = AllReduce.apply(terms, True, *(sent for sent, _ in pairs))  # type: ignore[no-untyped-call]
    notes = [note for _, note in pairs]
    return [compression.decompress(*each) for each in zip(reduced, notes, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Like `grouped_allreduce`, in place."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    return begin(
        current_session().grouped_allreduce,
        tensors,
        reduction,
        name,
        process_set,
        outputs=list(tensors),
    ).wait()


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All ranks' rows, one below the other in the order of ranks; their numbers may differ."""
    gathered: torch.Tensor
    (gathered,) = AllGather.apply(_terms("allgather", name, process_set), tensor)  # type: ignore[no-untyped-call]
    return gathered


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Like `allgather` for several tensors as one operation: all of them or none."""
    terms = _terms("grouped_allgather", name, process_set)
    return list(AllGather.apply(terms, *tensors))  # type: ignore[no-untyped-call]


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensor of `root_rank`, a global rank also in a process set."""
    terms = _terms("broadcast", name, process_set)
    result: torch.Tensor = Broadcast.apply(terms, root_rank, tensor)  # type: ignore[no-untyped-call]
    return result


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Like `broadcast`, in place."""
    return begin(
        current_session().broadcast, tensor, root_rank, name, process_set, output=tensor
    ).wait()


def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends `splits[i]` rows to the ith rank, and returns the rows that arrive, in the order of
    ranks, with the number from each. Without splits each gets as many, and only rows are returned.
    """
    terms = _terms("alltoall", name, process_set)
    numbers = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    rows, received = AllToAll.apply(terms, numbers, tensor)  # type: ignore[no-untyped-call]
    return rows if splits is None else (rows, received)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces, and leaves each rank its share of the rows; the first ranks get one more where the
    number does not divide."""
    reduction = scattered_reduction_of(op, prescale_factor, postscale_factor)
    terms = _terms("reducescatter", name, process_set, reduction)
    sent, note = compression.compress(tensor)
    return compression.decompress(ReduceScatter.apply(terms, False, sent), note)  # type: ignore[no-untyped-call]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Like `reducescatter` for several tensors as one operation: all of them or none."""
    reduction = scattered_reduction_of(op, prescale_factor, postscale_factor)
    terms = _terms("grouped_reducescatter", name, process_set, reduction)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = ReduceScatter.apply(terms, True, *(sent for sent, _ in pairs))  # type: ignore[no-untyped-call]
    notes = [note for _, note in pairs]
    return [compression.decompress(*each) for each in zip(reduced, notes, strict=True)]


def _terms(
    kind: str, name: str | None, process_set: ProcessSet, reduction: Reduction = AVERAGE
) -> Terms:
    full = None if name is None else f"{kind}.{name}"
    return Terms(full, id_of(process_set), reduction)
