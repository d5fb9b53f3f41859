"""A backward pass from the value of a reference; what it needs of distributed autograd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from lockstitch.errors import RRefError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.runtime.worker import Worker

UNSET_CONTEXT = -1


@runtime_checkable
class BackwardService(Protocol):
    """The part of distributed autograd that a backward pass from a reference needs."""

    def backward(self, context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool) -> None:
        """Begins a backward pass at `roots`, which are here, in the context `context_id`."""
        ...


def backward_from(worker: Worker, value: Any, context_id: int, retain_graph: bool) -> None:
    """Runs backward from `value` on its owner: a local pass without a context, else one over all
    workers of the context. Raises `RRefError` when the value is no tensor."""
    if not isinstance(value, torch.Tensor):
        raise RRefError(
            f"RRef should contain a tensor for .backward(), not a {type(value).__name__}"
        )
    if context_id == UNSET_CONTEXT:
        value.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        return
    service = worker.service(BackwardService)  # type: ignore[type-abstract]
    service.backward(context_id, [value], retain_graph)
