"""An operation on one tensor, in place, that a program submits again and again.

What follows from its name and shape is known from the first time, so little is left to be done
before the backend has it. From there on it goes the same way as any other.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.attach.recorder import RECORDER
from lockstitch.collectives.handles import Handle
from lockstitch.collectives.mappings import is_private
from lockstitch.collectives.requests import Request
from lockstitch.modes import are_plain

if TYPE_CHECKING:
    import threading

    from lockstitch.collectives.backend import Backend
    from lockstitch.collectives.pending_operations import PendingOperations

_TENSORS = ("tensors", "outputs")
_FIELDS = tuple(each.name for each in fields(Request))


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
        # Its tensors would be kept alive.
        self._like: list[Any] = [
            () if each in _TENSORS else getattr(first.request, each) for each in _FIELDS
        ]
        self._spare: Handle[Any] | None = None
        """A handle that nobody has, to be used again."""
        self._pending = pending
        self._submitting = submitting
        self._backend = backend

    @property
    def is_forgotten(self) -> bool:
        """Whether it will never be begun any more."""
        return self._cached.is_forgotten

    def next(self, tensor: torch.Tensor) -> Handle[Any] | None:
        """A handle for the next one, to `begin` with; None where it must be submitted as any other:
        something else is under way, somebody looks on, nothing can begin any more, or the tensor is
        no ordinary one."""
        pending = self._pending
        if (
            pending.handles
            or pending.is_broken
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
        handle, self._spare = self._spare, None
        if handle is None:
            handle = Handle(Request(*self._like), self._cached)
        request = handle.request
        request.tensors = request.outputs = (tensor,)
        return handle

    def begin(self, handle: Handle[Any]) -> bool:
        """Begins it, which `perform` or `submit` goes on with; False, having done nothing, where
        something else has begun meanwhile. Whatever is raised from here on until it is performed,
        an interrupt at any call, too: `withdraw` comes then."""
        with self._submitting:
            if self._pending.handles or self._cached.is_forgotten:
                return False
            self._pending.resume(handle)
        return True

    def submit(self, handle: Handle[Any]) -> None:
        """Has the backend begin it."""
        self._backend.submit(handle)

    def perform(self, handle: Handle[Any]) -> None:
        """The same; returns when it is done. Raises its error."""
        backend = self._backend
        backend.submit(handle)
        if not handle.is_done:
            backend.wait(handle)
        handle.result()

    def withdraw(self, handle: Handle[Any], error: BaseException) -> None:
        """Nobody will ask for it any more. If the backend does not have it, it is over."""
        self._pending.withdraw(handle.request, error, self._backend.look_after)

    def keep(self, handle: Handle[Any]) -> None:
        """It has been performed, and nobody else has the handle: it is for another one."""
        handle.clear()
        self._spare = handle
