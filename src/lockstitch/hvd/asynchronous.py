"""Every operation in the form that returns a handle at once, before any of its work is done: that
is left to the calls that follow, or to a thread. Gradients do not pass through these.

A name belongs to one kind of operation, so an allgather may have that of an allreduce in flight.
Names ending in an underscore, as in torch, write into the tensors that they are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from lockstitch.hvd.constants import Average, Sum, reduction_of, scattered_reduction_of
from lockstitch.hvd.handles import Operation
from lockstitch.hvd.job import current_session
from lockstitch.hvd.process_sets import ProcessSet, global_process_set, id_of, size_of
from lockstitch.modes import in_plain_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives import ReduceOp, Session

T = TypeVar("T")


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Operation[torch.Tensor]:
    """Begins what `allreduce` does, without a gradient, and returns a handle at once: `poll` it, or
    get the new tensor by `synchronize`, which raises what goes wrong on the way. The tensor must
    not be changed before. Raises at once what this rank alone can see (`ValueError`, `TypeError`).
    """
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    return begin("allreduce", (tensor, reduction), name, process_set, output=None)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Operation[torch.Tensor]:
    """Like `allreduce_async`, in place: the result is `tensor` itself."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    return begin("allreduce", (tensor, reduction), name, process_set, output=tensor)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Operation[list[torch.Tensor]]:
    """Begins what `grouped_allreduce` does; see `allreduce_async`."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    return begin("grouped_allreduce", (tensors, reduction), name, process_set, outputs=None)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Operation[list[torch.Tensor]]:
    """Like `grouped_allreduce_async`, in place: the result are `tensors` themselves."""
    reduction = reduction_of(average, op, prescale_factor, postscale_factor, process_set)
    return begin(
        "grouped_allreduce", (tensors, reduction), name, process_set, outputs=list(tensors)
    )


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Operation[torch.Tensor]:
    """Begins what `allgather` does, [rows, …] to [rows of all, …]; see `allreduce_async`."""
    return begin("allgather", (tensor,), name, process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Operation[list[torch.Tensor]]:
    """Begins what `grouped_allgather` does; see `allreduce_async`."""
    return begin("grouped_allgather", (tensors,), name, process_set)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Operation[torch.Tensor]:
    """Begins to copy the tensor of `root_rank`, a global rank also in a process set, to all, into
    new tensors; see `broadcast` and `allreduce_async`."""
    return begin("broadcast", (tensor, root_rank), name, process_set, output=None)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Operation[torch.Tensor]:
    """Like `broadcast_async`, in place: the result is `tensor` itself."""
    return begin("broadcast", (tensor, root_rank), name, process_set, output=tensor)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Operation[tuple[torch.Tensor, torch.Tensor]]:
    """Begins to send `splits[i]` rows to the ith rank (without splits: the same number to each).
    The result: the rows received, [rows, …] in the order of ranks, and how many came from each,
    int32 [ranks]. See `alltoall` and `allreduce_async`."""
    if isinstance(splits, torch.Tensor):
        splits = splits.tolist()
    return begin("alltoall", (tensor, splits), name, process_set, finish=tuple)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Operation[torch.Tensor]:
    """Begins to reduce [rows, …], and leaves each rank its share of the rows, [rows / ranks, …];
    the first ranks get one more where the number does not divide. See `allreduce_async`."""
    reduction = scattered_reduction_of(op, prescale_factor, postscale_factor)
    return begin("reducescatter", (tensor, reduction), name, process_set)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Operation[list[torch.Tensor]]:
    """Begins what `grouped_reducescatter` does; see `allreduce_async`."""
    reduction = scattered_reduction_of(op, prescale_factor, postscale_factor)
    return begin("grouped_reducescatter", (tensors, reduction), name, process_set)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet = global_process_set,
) -> Operation[torch.Tensor]:
    """Begins to sum or average sparse tensors (COO, of one shape and dtype): only the entries that
    are there travel. The result is coalesced. What is returned may also be called, to wait. Raises
    `ValueError` for another `op` than `hvd.Average` and `hvd.Sum`; see `allreduce_async`."""
    full_name = _full("sparse_allreduce", name)
    return sparse_operation(current_session(), tensor, full_name, op, process_set)


@in_plain_modes
def sparse_operation(
    session: Session,
    tensor: torch.Tensor,
    full_name: str | None,
    op: ReduceOp,
    process_set: ProcessSet,
) -> Operation[torch.Tensor]:
    """Returns what `sparse_allreduce_async` comes down to."""
    if op not in (Average, Sum):
        raise ValueError(f"sparse tensors can be summed or averaged, not {op!r}")
    entries = tensor.detach().coalesce()
    divisor = size_of(process_set) if op is Average else 1
    shape = tensor.shape

    @in_plain_modes
    def assemble(gathered: list[torch.Tensor]) -> torch.Tensor:
        places, values = gathered
        if divisor != 1:
            values = values / divisor
        return torch.sparse_coo_tensor(places.t(), values, shape, check_invariants=False).coalesce()

    handle = session.grouped_allgather(
        [entries.indices().t(), entries.values()],
        name=full_name,
        process_set=id_of(process_set),
    )
    return Operation(session, handle, assemble)


def begin(
    kind: str,
    what: tuple[Any, ...],
    name: str | None,
    process_set: ProcessSet,
    *,
    is_deferred: bool = True,
    finish: Callable[[Any], T] | None = None,
    **target: T | None,
) -> Operation[T]:
    """Submits an operation of the session; `what`: its arguments. Where it has an `output` (of a
    group: `outputs`) other than None, that is the result; `finish`: see `Operation`. What is not
    deferred is waited for at once."""
    session = current_session()
    operation = getattr(session.deferred if is_deferred else session.awaited, kind)
    handle = operation(*what, name=_full(kind, name), process_set=id_of(process_set), **target)
    given = next(iter(target.values()), None)
    return Operation(session, handle, finish if given is None else lambda _: given)


def _full(kind: str, name: str | None) -> str | None:
    return None if name is None else f"{kind}.{name}"
