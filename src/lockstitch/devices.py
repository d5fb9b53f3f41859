"""Where devices differ: elsewhere no code asks whether a tensor lives on an accelerator.

Between workers a tensor travels through host memory, and arrives on the device of the same name
where the receiver has one, else on the CPU.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


is_on_host: Final[Callable[[torch.Tensor], bool]] = attrgetter("is_cpu")
"""Whether the CPU can read the tensor's memory."""


def stage_out(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """A copy in host memory that is complete when this returns, and the name of its device."""
    return tensor.detach().cpu(), str(tensor.device)


def stage_in(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Brings a tensor from host memory to the device of that name, if this machine has it."""
    kind, _, index = device.partition(":")
    module = getattr(torch, kind, None)
    count = module.device_count() if module is not None and hasattr(module, "device_count") else 0
    return tensor.to(device) if int(index or 0) < count else tensor
