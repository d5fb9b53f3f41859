"""Operations in one phase: all ranks' tensors lie in the arenas, and each rank computes its result
from all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.collectives.arithmetic import UNSCALED, combine, fold, outputs_of, result_scale
from lockstitch.collectives.copying import copy, copy_all
from lockstitch.collectives.requests import Kind
from lockstitch.collectives.shared_memory.operations import NOWHERE, Operation, finished, stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.arithmetic import Parts
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.requests import Description, Request
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.operations import OperationContext, Part

# What is smaller is in the cache anyway, whichever copy of it is read.
_CACHED_BYTES: Final = 1 << 16


class Whole(Operation):
    """An operation in one phase."""

    fails_alone = True
    _value: object = None
    _is_begun = False
    """Whether the result may have been written, in part, before an interrupt."""

    def __init__(self, handle: Handle[Any], definition: Definition) -> None:
        super().__init__(handle, definition)

    def prepare(self, context: OperationContext) -> int:
        """Copies the tensors; returns where they are."""
        request = self.request
        if not request.tensors or (request.kind is Kind.BROADCAST and request.root != context.rank):
            return NOWHERE
        definition = self.definition
        place = context.take(self, definition.layout.size)
        if definition.has_single and request.reduction.prescale == 1.0:  # type: ignore[union-attr]
            copy(definition.view(context.segment, place), request.tensors[0])
            return place
        views = definition.views(context.segment, place)
        if request.reduction is None or request.reduction.prescale == 1.0:
            copy_all(views, request.tensors)
        else:
            stage(request, views)
        return place

    def step(self, context: OperationContext) -> bool:
        if self.definition.has_single:
            self._reduce_one(context)
        elif self.definition.is_uniform:
            self._reduce_together(context)
        else:
            self._combine(context)
        return True

    def _reduce_one(self, context: OperationContext) -> None:
        """The usual case, an allreduce of one tensor, in fewer steps."""
        request = self.request
        view, segment = self.definition.view, context.segment
        tensors = [view(segment, part.place) for part in self.present]
        if len(tensors) == 2 and not self._is_begun and self._can_read_own():
            # Not the copy: what is in the cache is the tensor itself.
            tensors[self.position] = request.tensors[0]
            self._is_begun = True
        out = reduced(self.definition, request, tensors, len(self.parts))
        self._value = [out] if request.is_group else out

    def _reduce_together(self, context: OperationContext) -> None:
        """Several tensors of one dtype, as the one vector in which they lie, gaps included."""
        request, definition = self.request, self.definition
        assert request.reduction is not None
        dtype = definition.dtypes[0]
        count = definition.layout.size // dtype.itemsize
        vectors = [context.segment.vector(part.place, dtype, count) for part in self.present]
        flat = fold(definition.fold, vectors, torch.empty(count, dtype=dtype))
        result_scale(request.reduction, len(self.parts)).apply_(flat)
        begins = [offset // dtype.itemsize for offset in definition.layout.offsets]
        results = [  # by `data` each has a version of its own, and can be detached
            flat[begin : begin + tensor.numel()].view(tensor.shape).data
            for begin, tensor in zip(begins, request.tensors, strict=True)
        ]
        if request.outputs is not None:
            copy_all(request.outputs, results)
            results = list(request.outputs)
        self._value = results

    def _can_read_own(self) -> bool:
        return (
            self.definition.layout.size > _CACHED_BYTES
            and len(self.parts) == 2
            and self.request.reduction is not None
            and self.request.reduction.prescale == 1.0
        )

    def _combine(self, context: OperationContext) -> None:
        segment = context.segment
        tensors = [
            None
            if part is None
            else []
            if part.place == NOWHERE
            else part.definition.views(segment, part.place)
            for part in self.parts
        ]
        described = [part.definition.description if part else None for part in self.parts]
        self._value = combined(self.handle, described, tensors, self.position)

    def owes(self, _part: Part) -> bool:
        return False

    def result(self) -> object:
        return self._value


def combined(
    handle: Handle[Any],
    described: Sequence[Description | None],
    tensors: Parts,
    position: int,
) -> object:
    """The value of any operation for the rank at `position`, from the tensors of all."""
    results = combine(handle.request, described, tensors, position)
    return finished(handle, described, results)


def output_of(request: Request) -> torch.Tensor:
    """Where the result of an allreduce of one tensor goes."""
    return request.outputs[0] if request.outputs is not None else outputs_of(request)[0]


def reduced(
    definition: Definition, request: Request, tensors: Sequence[torch.Tensor], set_size: int
) -> torch.Tensor:
    """The result of an allreduce of one tensor, from those of all ranks that take part. Raises
    `RuntimeError` where the program has put another tensor in its place meanwhile."""
    out = output_of(request)
    if not request.is_awaited and out.shape != tensors[0].shape:  # torch would resize it
        raise RuntimeError(
            f"{request.name!r}: the tensor must match what was submitted, of shape "
            f"{tuple(tensors[0].shape)}, until it is done, and has shape {tuple(out.shape)} by now"
        )
    fold(definition.fold, tensors, out)
    scale = definition.scale(set_size)
    if scale is not UNSCALED:
        scale.apply_(out)
    return out
