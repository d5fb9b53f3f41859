"""Operations as nodes of the autograd graph.

The gradients have the scale that programs of the original count on:

    forward                   backward of what arrives from above
    allreduce                 allreduce with the same operator and scales
    allgather                 average over the ranks, of which each takes its rows
    broadcast                 average over the ranks at the root, zero elsewhere
    alltoall                  alltoall back
    reducescatter             allgather; times the number of ranks where it was a sum

Each backward is such a node again, so it can be differentiated too. As every rank takes part in
every operation, all ranks must run backward through it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives import AVERAGE, ReduceOp, Reduction
from lockstitch.hvd.job import current_session
from lockstitch.modes import are_plain
from lockstitch.torch_internals.modes import is_forward_mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives import ProcessSet


@dataclass(frozen=True, slots=True)
class OperationOptions:
    """The arguments of an operation besides its tensors."""

    name: str | None
    process_set: int
    reduction: Reduction = AVERAGE

    def back(self, reduction: Reduction | None = None) -> OperationOptions:
        """Returns the options of the operation in the backward pass, under a name of its own."""
        name = None if self.name is None else f"{self.name}.backward"
        return replace(self, name=name, reduction=reduction or self.reduction)

    @property
    def members(self) -> ProcessSet:
        """The process set itself."""
        return current_session().process_set(self.process_set)


def allreduced(options: OperationOptions, tensor: torch.Tensor) -> torch.Tensor:
    """The reduction of one tensor; a node of the graph where torch records it, or would refuse."""
    if (
        type(tensor) is not torch.Tensor
        or (tensor.requires_grad and torch.is_grad_enabled())
        or is_forward_mode()
        or not are_plain()
    ):
        return AllReduce.apply(options, False, tensor)  # type: ignore[no-any-return, no-untyped-call]
    return _allreduced(options, tensor)


def _allreduced(options: OperationOptions, tensor: torch.Tensor) -> torch.Tensor:
    session = current_session().awaited
    handle = session.allreduce(
        tensor, options.reduction, name=options.name, process_set=options.process_set
    )
    return session.wait(handle)


class AllReduce(torch.autograd.Function):
    """The reduction of one tensor, or of a group of them as one operation."""

    @staticmethod
    def forward(ctx: Any, options: OperationOptions, is_group: bool, *tensors: torch.Tensor) -> Any:
        """Reduces the tensors."""
        ctx.options, ctx.is_group = options, is_group
        if not is_group:
            return _allreduced(options, tensors[0])
        session = current_session().awaited
        group = session.grouped_allreduce(
            tensors, options.reduction, name=options.name, process_set=options.process_set
        )
        return (*session.wait(group),)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Reduces in the same way."""
        op = ctx.options.reduction.op
        if op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
            raise RuntimeError(f"hvd has no gradient for an allreduce with {op.value}")
        reduced = AllReduce.apply(ctx.options.back(), ctx.is_group, *gradients)  # type: ignore[no-untyped-call]
        return None, None, *(reduced if ctx.is_group else (reduced,))


class AllGather(torch.autograd.Function):
    """The gathering of several tensors as one operation."""

    @staticmethod
    def forward(ctx: Any, options: OperationOptions, *tensors: torch.Tensor) -> Any:
        """Gathers, and keeps where this rank's own rows are."""
        session = current_session()
        handle = session.awaited.grouped_allgather(
            tensors, name=options.name, process_set=options.process_set
        )
        results = session.wait(handle)
        position = options.members.position(session.rank)
        ctx.options = options
        ctx.own = [(sum(rows[:position]), rows[position]) for rows in handle.rows]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The average, of which this rank's rows."""
        averages = AllReduce.apply(ctx.options.back(AVERAGE), True, *gradients)  # type: ignore[no-untyped-call]
        return None, *(each.narrow(0, *own) for each, own in zip(averages, ctx.own, strict=True))


class Broadcast(torch.autograd.Function):
    """The broadcast of one tensor."""

    @staticmethod
    def forward(ctx: Any, options: OperationOptions, root: int, tensor: torch.Tensor) -> Any:
        """Copies the root's tensor to all."""
        ctx.options, ctx.root = options, root
        session = current_session()
        return session.wait(
            session.awaited.broadcast(
                tensor, root, name=options.name, process_set=options.process_set
            )
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The average for the root, nothing for the others."""
        average = AllReduce.apply(ctx.options.back(AVERAGE), False, *gradients)  # type: ignore[no-untyped-call]
        if current_session().rank != ctx.root:
            average = average * 0
        return None, None, average


class AllToAll(torch.autograd.Function):
    """The exchange of one tensor's rows; how many rows came from each rank is the second result."""

    @staticmethod
    def forward(
        ctx: Any, options: OperationOptions, splits: Sequence[int] | None, tensor: torch.Tensor
    ) -> Any:
        """Sends rows to and fro."""
        session = current_session()
        rows, received = session.wait(
            session.awaited.alltoall(
                tensor, splits, name=options.name, process_set=options.process_set
            )
        )
        ctx.options, ctx.received = options, received.tolist()
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Sends gradients back where the rows came from."""
        back, _ = AllToAll.apply(ctx.options.back(), ctx.received, gradients[0])  # type: ignore[no-untyped-call]
        return None, None, back


class ReduceScatter(torch.autograd.Function):
    """The scattered reduction of one tensor, or of a group of them as one operation."""

    @staticmethod
    def forward(ctx: Any, options: OperationOptions, is_group: bool, *tensors: torch.Tensor) -> Any:
        """Reduces, and takes this rank's rows."""
        ctx.options, ctx.is_group = options, is_group
        session, how = current_session().awaited, options.reduction
        if is_group:
            group = session.grouped_reducescatter(
                tensors, how, name=options.name, process_set=options.process_set
            )
            return (*session.wait(group),)
        return session.wait(
            session.reducescatter(
                tensors[0], how, name=options.name, process_set=options.process_set
            )
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gathers the gradients of all ranks."""
        reduction = ctx.options.reduction
        if reduction.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
            raise RuntimeError(f"hvd has no gradient for a reducescatter with {reduction.op.value}")
        factor = reduction.prescale * reduction.postscale
        if reduction.op is ReduceOp.SUM:
            factor *= ctx.options.members.size
        gathered = AllGather.apply(ctx.options.back(), *gradients)  # type: ignore[no-untyped-call]
        return None, None, *(each if factor == 1.0 else each * factor for each in gathered)
