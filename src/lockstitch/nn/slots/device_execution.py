"""Tensors that come to the device of a slot's replica, and go back to where the caller's are."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from lockstitch.devices.streams import use_here
from lockstitch.nn.slots.execution import Executor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from lockstitch.nn.slots.base import BackwardRequest, Gradients, Outcome, Request


class DeviceExecutor(Executor):
    """Brings what it is given to its device. Gradients of what came from another one go back there:
    that is on the graph. `waits`: whether what it is given may be written to or given up as soon as
    a request has been answered, though the device has still to read it."""

    def __init__(
        self,
        module: nn.Module,
        leaves: Sequence[torch.Tensor],
        device: torch.device,
        *,
        waits: bool,
    ) -> None:
        super().__init__(module, leaves, device)
        self._waits = waits

    def forward(self, request: Request) -> Outcome:
        others = [(i, self._here(tensor)) for i, tensor in request.changes.others]
        changes = dataclasses.replace(request.changes, others=others)
        return super().forward(dataclasses.replace(request, changes=changes))

    def backward(self, request: BackwardRequest) -> Gradients:
        gradients = [self._here(each) for each in request.gradients]
        return super().backward(dataclasses.replace(request, gradients=gradients))

    def bring(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        return [self._here(tensor) for tensor in tensors]

    def _here(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        here = tensor.to(self.device, non_blocking=not self._waits)
        use_here((tensor, here))
        return here


def at_home(
    gradients: Sequence[torch.Tensor | None], leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of leaves, each on the device of its leaf; none if there are none."""
    use_here(gradients)
    return [
        None if gradient is None else gradient.to(leaf.device)
        for gradient, leaf in zip(gradients, leaves, strict=False)
    ]
