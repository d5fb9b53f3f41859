"""Gradients that are reduced together, in one piece of memory that the other ranks of the host can
reach.

Backward makes each gradient where it likes. When the last of a bucket is there, all are copied into
the bucket and are views of it from then on, so that one reduction, in place, is all of theirs. The
memory is kept from step to step, unless the program has kept a gradient of the last one.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

import torch

from lockstitch.collectives import Kind, Request
from lockstitch.collectives.copying import copy_all
from lockstitch.collectives.fusion import Layout
from lockstitch.hvd.compression import NoneCompressor
from lockstitch.hvd.exchange import ONE_PHASE_BYTES, Exchange, gradient_of
from lockstitch.hvd.handles import Operation
from lockstitch.hvd.process_sets import id_of
from lockstitch.modes import in_plain_modes
from lockstitch.torch_internals.owners import users_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives import Handle, Session
    from lockstitch.hvd.exchange import ReducerOptions


class Bucket:
    """The memory of a bucket, and each gradient's part of it, in the layout of its parameter."""

    @in_plain_modes
    def __init__(self, session: Session, parameters: Sequence[torch.Tensor]) -> None:
        self._session = weakref.ref(session)
        self._parameters = tuple(parameters)
        dtype = parameters[0].dtype
        layout = Layout.of(each.nbytes for each in parameters)
        self.flat = session.resident((layout.size // dtype.itemsize,), dtype).zero_()
        self.views = [
            _view(self.flat, offset // dtype.itemsize, each)
            for each, offset in zip(parameters, layout.offsets, strict=True)
        ]
        self._storages = [each.untyped_storage() for each in (self.flat, *self.views)]
        self.handle: Handle[torch.Tensor] | None = None
        """Of the last reduction."""
        self._holders = self._count_holders()

    def __repr__(self) -> str:
        return f"<Bucket of {len(self.views)} gradients · {self.flat.nbytes} bytes>"

    def suits(self, session: Session, parameters: Sequence[torch.Tensor]) -> bool:
        """Returns whether it was made for these, and nobody needs what is in it."""
        if (
            session is not self._session()
            or len(parameters) != len(self._parameters)
            or any(a is not b for a, b in zip(parameters, self._parameters, strict=True))
            or (self.handle is not None and not self.handle.is_done)
        ):
            return False
        is_inside = [a.grad is b for a, b in zip(parameters, self.views, strict=True)]
        return all(is_inside) or (not any(is_inside) and self._count_holders() == self._holders)

    def take_in(self) -> None:
        """Lets the gradients be views."""
        pairs = [
            (parameter, gradient_of(parameter), view)
            for parameter, view in zip(self._parameters, self.views, strict=True)
            if parameter.grad is not view
        ]
        if pairs:
            with torch.no_grad():
                copy_all([view for *_, view in pairs], [each for _, each, _ in pairs])
            for parameter, _, view in pairs:
                parameter.grad = view

    def _count_holders(self) -> tuple[int, ...]:
        """Returns how many look at the memory and at each part of it, and have each gradient."""
        return (*users_of(self._storages), *map(sys.getrefcount, self.views))


class BucketExchange(Exchange):
    """The reduction of a bucket."""

    def __init__(
        self,
        session: Session,
        options: ReducerOptions,
        name: str,
        bucket: Bucket,
        parameters: Sequence[torch.Tensor],
    ) -> None:
        bucket.take_in()
        self._note(parameters)
        bucket.handle = session.submit(
            Request(
                Kind.ALLREDUCE,
                name,
                (bucket.flat,),
                outputs=(bucket.flat,),
                reduction=options.reduction,
                process_set=id_of(options.process_set),
                is_awaited=True,
            )
        )
        self._operation = Operation(session, bucket.handle, _nothing)


def fits_into_bucket(
    session: Session, options: ReducerOptions, parameters: Sequence[torch.Tensor]
) -> bool:
    """Returns whether the gradients of these, all dense, can be reduced in a bucket. The same on
    all ranks of which the parameters are."""
    if (
        session.backend_name != "shared_memory"
        or options.compression is not NoneCompressor
        or options.reduction.prescale != 1.0
        or sum(each.nbytes for each in parameters) <= ONE_PHASE_BYTES
    ):
        return False
    dtype = parameters[0].dtype
    return all(
        each.dtype is dtype and gradient_of(each).dtype is dtype and each.is_cpu
        for each in parameters
    )


def _view(flat: torch.Tensor, begin: int, parameter: torch.Tensor) -> torch.Tensor:
    """A gradient's part of the memory. It has a storage of its own, so that saving or copying one
    gradient takes no other along, and, by `data`, a version of its own."""
    count, strides = parameter.numel(), _strides(parameter)
    if not count:
        return torch.empty_strided(parameter.shape, strides, dtype=flat.dtype)
    memory = flat[begin : begin + count].view(torch.uint8).numpy()
    own = torch.frombuffer(memory, dtype=flat.dtype, count=count)
    return own.as_strided(parameter.shape, strides).data


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Returns the strides of the parameter, where its elements lie side by side; else as if it were
    contiguous. All ranks come to the same, so that the same elements meet."""
    strides, step = parameter.stride(), 1
    for stride, length in sorted(zip(strides, parameter.shape, strict=True)):
        if length != 1:
            if stride != step:
                return torch.empty(parameter.shape, device="meta").stride()
            step *= length
    return strides


def _nothing(_result: object) -> None:
    """Does nothing: the gradients are in place."""
