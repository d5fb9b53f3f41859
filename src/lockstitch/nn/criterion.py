"""The loss computed where the outputs are: slots send one number each instead of what they made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lockstitch.nn.data_parallel import DataParallel
from lockstitch.nn.parallel import Shard
from lockstitch.nn.parallel.containers import tensors_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.nn.slots.kinds import SlotPlace

__all__ = ["DataParallelCriterion"]


class ModuleWithLoss(nn.Module):
    """`module` and the loss of its output, as one module."""

    def __init__(self, module: nn.Module, criterion: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.module = module
        self.criterion = criterion

    def forward(
        self, inputs: tuple[Any, ...], targets: Any, kwargs: dict[str, Any], rows: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """The loss [], and of how many rows it is the mean."""
        loss = self.criterion(self.module(*inputs, **kwargs), targets)
        if loss.dim():
            raise ValueError(
                f"the criterion returned a tensor of shape {tuple(loss.shape)}; its loss must have "
                'no dimensions, as with reduction="mean"'
            )
        return loss, len(rows)


class DataParallelCriterion(DataParallel[ModuleWithLoss]):
    """`DataParallel` with the loss computed in the slots; the caller gathers no outputs.

        model = DataParallelCriterion(net, nn.CrossEntropyLoss(), device_ids=["fork", "fork"])
        loss = model(inputs, targets)
        loss.backward()

    - `module`: as for `DataParallel`.
    - `criterion`: called in each slot with the module's output and the slot's part of the targets;
      returns the mean over that part, a tensor without dimensions.
    - `device_ids`, `output_device`, `dim`: as for `DataParallel`; without `device_ids` and
      accelerators all is computed plainly.

    The parameters are also those of `net` itself, whose `state_dict` is the one to keep.
    """

    def __init__(
        self,
        module: nn.Module,
        criterion: Callable[..., torch.Tensor],
        device_ids: Sequence[SlotPlace] | None = None,
        output_device: int | str | torch.device | None = None,
        dim: int = 0,
    ) -> None:
        super().__init__(ModuleWithLoss(module, criterion), device_ids, output_device, dim)

    def forward(self, inputs: Any, targets: Any, **kwargs: Any) -> torch.Tensor:
        """The mean loss of the batch, []: that of the slots, weighted by their rows. Where the
        criterion's mean is weighted otherwise (`weight`, `ignore_index`) it is not the plain one.

        `inputs` is the module's argument, or a tuple of them; `targets`, a tensor or a structure
        of tensors, is cut like them. Raises `ValueError` if no tensor is to be cut, and if the
        criterion's loss has dimensions.
        """
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        tensors = tensors_within((args, targets, kwargs))
        first = next((each for each in tensors if -each.dim() <= self.dim < each.dim()), None)
        if first is None:
            raise ValueError("there is no tensor to cut among the inputs and targets")
        rows = Shard(torch.empty(first.shape[self.dim]), 0)
        result = super().forward(args, targets, kwargs, rows)
        return result if isinstance(result, torch.Tensor) else result[0]

    def gather(
        self, outputs: Sequence[tuple[torch.Tensor, int]], output_device: Any
    ) -> torch.Tensor:
        """The mean of the slots' losses, weighted by how many rows each is of."""
        total = sum(rows for _, rows in outputs)
        weighted = [loss.to(output_device) * (rows / total) for loss, rows in outputs]
        return torch.stack(weighted).sum()
