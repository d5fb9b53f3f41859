"""Where a slot of a parallel step runs: the torch device behind what a program writes.

A number is an accelerator's index where there is an accelerator, and a slot on the CPU where there
is none; so a program for two GPUs runs on two slots of a CPU.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, TypeAlias

from lockstitch.devices import accelerators
from lockstitch.devices.kinds import HOST, is_gpu

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

Place: TypeAlias = "int | str | torch.device"

SLOTS_OF_THE_CPU: Final = ("thread", "fork")
"""Names that `DataParallel` takes for these."""


def device_of(place: Place | None) -> torch.device:
    """The device of `place`: a number as above, -1 the CPU, as are "thread" and "fork", None the
    current accelerator, else what `torch.device` takes. Raises what `torch.device` raises for a
    name that it does not know."""
    if place is HOST or place == -1 or place in SLOTS_OF_THE_CPU:
        return HOST
    if place is None or isinstance(place, int):
        return accelerators.numbered(place)
    return accelerators.named(place)


def devices_of(places: Iterable[Place]) -> list[torch.device]:
    """Returns one device for each place, in their order."""
    return [device_of(place) for place in places]


def check_devices(module: nn.Module, device: torch.device) -> None:
    """Raises `RuntimeError` if a parameter or buffer of `module` is not on `device`, that of the
    first slot."""
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        if tensor.device != device:
            raise RuntimeError(
                "module must have its parameters and buffers on device "
                f"{device} (device_ids[0]) but found one of them on device: {tensor.device}"
            )


def are_different_gpus(devices: Iterable[torch.device]) -> bool:
    """Returns whether these are several CUDA devices and none comes twice: what torch's own
    functions, and NCCL behind them, are for."""
    listed = list(devices)
    return len(set(listed)) == len(listed) > 1 and all(map(is_gpu, listed))
