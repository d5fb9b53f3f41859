"""An operation on one tensor, in place, that a program submits again and again and waits for.

What follows from its name and shape is known from the first time, so little is left to be done
before the backend has it. From there on it goes the same way as any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.attach.recorder import RECORDER
from lockstitch.collectives.handles import Handle
from lockstitch.collectives.mappings import is_private
from lockstitch.modes import are_plain

if TYPE_CHECKING:
    import threading

    from lockstitch.collectives.backend import Backend
    from lockstitch.collectives.pending_operations import PendingOperations


class Repeated:
    """Made by `Session.repeated`, of the first one."""

    def __init__(
        self,
        first: Handle[Any],
        pending: PendingOperations,
        submitting: threading.Lock,
        backend: Backend,
    ) -> None:
        self._cached = first.cached
        self._like = replace(first.request, tensors=(), outputs=())
        self._spare: Handle[Any] | None = None
        """A handle that nobody has, to be used again."""
        self._pending = pending
        self._submitting = submitting
        self._backend = backend

    @property
    def is_forgotten(self) -> bool:
        """Whether it will never be begun any more."""
        return self._cached.is_forgotten

    def begin(self, tensor: torch.Tensor) -> Handle[Any] | None:
        """The handle of the next one, which `perform` is to be called with; None, having done
        nothing, where it must be submitted as any other: something else is under way, somebody
        looks on, or the tensor is no ordinary one. Raises why nothing can begin any more."""
        pending = self._pending
        if (
            pending.handles
            or type(tensor) is not torch.Tensor
            or tensor.layout is not torch.strided
            or not tensor.is_cpu
            or not tensor.is_contiguous()
            or not is_private(tensor)
            or tensor.requires_grad
            or tensor.is_inference()
            or pending.observers.progress is not None
            or RECORDER.spans is not None
            or not are_plain()
        ):
            return None
        with self._submitting:
            if pending.handles or self._cached.is_forgotten:
                return None
            handle, self._spare = self._spare, None
            if handle is None:
                handle = Handle(replace(self._like), self._cached)
            request = handle.request
            request.tensors = request.outputs = (tensor,)
            try:
                pending.resume(handle)
            except BaseException as error:
                pending.withdraw(request, error)
                raise
        return handle

    def perform(self, handle: Handle[Any]) -> None:
        """Returns when it is done; raises its error. Nobody has the handle any more then."""
        backend = self._backend
        try:
            backend.submit(handle)
        except BaseException as error:
            self._pending.withdraw(handle.request, error)
            raise
        if not handle.is_done:
            backend.wait(handle)
        handle.result()
        handle.clear()
        self._spare = handle
