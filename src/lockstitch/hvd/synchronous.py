"""Every operation in the form that returns its result. Gradients pass through those that make new
tensors (`gradients` says how); a name ending in an underscore works in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

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
    OperationOptions,
    ReduceScatter,
    allreduced,
)
from lockstitch.hvd.process_sets import ProcessSet, global_process_set, id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives import ReduceOp
    from lockstitch.hvd.compression import Compressor


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
    """The tensors of all ranks reduced by `op`: a new tensor, bit for bit the same on all ranks.

    `tensor`: dense, of any shape, strides and dtype that torch can reduce so; shape and dtype are
    the same on all ranks. `op`: `hvd.Average` (the default; integers are cut towards zero), `Sum`,
    `Min`, `Max`, `Product` or `Adasum`; `average` is its older form. `name`: by which the ranks
    find each other's tensors; by default operations without a name are numbered, and must come in
    one order on all ranks. `compression`: what travels, e.g. `hvd.Compression.fp16`; by default the
    tensor as it is. `prescale_factor` and `postscale_factor`: numbers by which tensors are
    multiplied before and afterwards (1). `process_set`: the ranks that take part, by default all.

    The gradient is reduced by the same operator; only `Average` and `Sum` have one, backward
    through the others raises `RuntimeError`. Raises `MismatchError` on all ranks where shapes,
    dtypes or operators differ, `RankLostError` where a rank is gone, `StalledError` after
    `HOROVOD_STALL_SHUTDOWN_TIME_SECONDS`, all of them `HorovodInternalError`; `ValueError` before
    `init` and for a name that is in flight; `TypeError` for what is no tensor. All other operations
    raise the same. After `horovod.torch.allreduce`.
    """
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    options = _options("allreduce", name, process_set, reduction)
    sent, note = compression.compress(tensor)
    return compression.decompress(allreduced(options, sent), note)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Like `allreduce`, in place, and without a gradient; returns `tensor`."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    return begin(
        "allreduce", (tensor, reduction), name, process_set, is_deferred=False, output=tensor
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
    """Like `allreduce` for several tensors as one operation: all of them or none. Their shapes and
    dtypes may differ from each other. Returns new tensors, in the same order."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    options = _options("grouped_allreduce", name, process_set, reduction)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = AllReduce.apply(options, True, *(sent for sent, _ in pairs))  # type: ignore[no-untyped-call]
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
    """Like `grouped_allreduce`, in place, and without gradients; returns the same tensors."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    return begin(
        "grouped_allreduce",
        (tensors, reduction),
        name,
        process_set,
        is_deferred=False,
        outputs=list(tensors),
    ).wait()


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All ranks' rows, one below the other in the order of ranks: [rows of all, …].

    `tensor`: [rows, …]; the number of rows may differ, or be 0; the other dimensions and the dtype
    may not (`MismatchError`). A scalar is a `ValueError`. The gradient of a rank's rows is the
    average of what all ranks have for them. Otherwise as `allreduce`.
    """
    gathered: torch.Tensor
    (gathered,) = AllGather.apply(_options("allgather", name, process_set), tensor)  # type: ignore[no-untyped-call]
    return gathered


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Like `allgather` for several tensors as one operation: all of them or none. Returns the
    gathered tensors, in the same order."""
    options = _options("grouped_allgather", name, process_set)
    return list(AllGather.apply(options, *tensors))  # type: ignore[no-untyped-call]


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The tensor of `root_rank`, a global rank also in a process set: a new tensor on all ranks.

    `tensor`: of the same shape and dtype on all ranks, whatever it holds elsewhere than on the
    root. The root's gradient is the average of all ranks' gradients, that of others is zeros.
    Raises `ValueError` for a root that does not belong to the set. Otherwise as `allreduce`.
    """
    options = _options("broadcast", name, process_set)
    result: torch.Tensor = Broadcast.apply(options, root_rank, tensor)  # type: ignore[no-untyped-call]
    return result


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Like `broadcast`, in place, and without a gradient; returns `tensor`."""
    return begin(
        "broadcast", (tensor, root_rank), name, process_set, is_deferred=False, output=tensor
    ).wait()


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor: ...
@overload
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends `splits[i]` rows to the ith rank, and returns the rows that arrive, [rows, …] in the
    order of ranks, with the number from each, int32 [ranks]. Without splits each gets as many, and
    only rows are returned.

    `tensor`: [rows, …]; all but the number of rows is the same on all ranks. Raises `ValueError`
    where the splits do not add up to the rows, or without them the ranks do not divide the rows.
    Otherwise as `allreduce`.
    """
    options = _options("alltoall", name, process_set)
    numbers = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    rows, received = AllToAll.apply(options, numbers, tensor)  # type: ignore[no-untyped-call]
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
    """Reduces, and leaves each rank its share of the rows: [rows / ranks, …]; the first ranks get
    one more where the number does not divide. `tensor`: [rows, …], of the same shape on all ranks;
    a scalar is a `ValueError`. Otherwise as `allreduce`, but without `Adasum`."""
    reduction = scattered_reduction_of(op, prescale_factor, postscale_factor)
    options = _options("reducescatter", name, process_set, reduction)
    sent, note = compression.compress(tensor)
    return compression.decompress(ReduceScatter.apply(options, False, sent), note)  # type: ignore[no-untyped-call]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Like `reducescatter` for several tensors as one operation: all of them or none. Returns this
    rank's shares, in the same order."""
    reduction = scattered_reduction_of(op, prescale_factor, postscale_factor)
    options = _options("grouped_reducescatter", name, process_set, reduction)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = ReduceScatter.apply(options, True, *(sent for sent, _ in pairs))  # type: ignore[no-untyped-call]
    notes = [note for _, note in pairs]
    return [compression.decompress(*each) for each in zip(reduced, notes, strict=True)]


def _options(
    kind: str, name: str | None, process_set: ProcessSet, reduction: Reduction = AVERAGE
) -> OperationOptions:
    full = None if name is None else f"{kind}.{name}"
    return OperationOptions(full, id_of(process_set), reduction)
