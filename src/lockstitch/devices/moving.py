"""Tensors from one device to another.

Copies between host and device are begun one after the other and waited for once, on the streams
that are current where they are begun: what is sent is what these streams had to compute, and what
has arrived is ready for them, or for every stream where nobody knows which one is meant.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

import torch

from lockstitch.devices.kinds import is_gpu, is_host, is_on_host
from lockstitch.devices.streams import wait_for_current

if TYPE_CHECKING:
    from collections.abc import Iterable

_SMALL_BYTES: Final = 64 * 1024


def stage_out(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory that is complete when this returns."""
    return tensor.detach().cpu()


def begin_move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on `device`. Towards an accelerator the copy may be under way, in the order of the
    streams; towards the host it is complete."""
    return tensor.to(device, non_blocking=not is_host(device))


def begin_copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies into `target`, likewise."""
    target.copy_(source, non_blocking=not is_host(target.device))


def move_all(
    tensors: Iterable[torch.Tensor], devices: Iterable[torch.device], *, is_used_here: bool = False
) -> list[torch.Tensor]:
    """Each tensor on its device, as plain tensors that want no gradient; complete when this
    returns. Where the result `is_used_here`, on the current streams, small ones may be under way.
    """
    moved: list[torch.Tensor] = []
    used: set[torch.device] = set()
    with torch.inference_mode(False), torch.no_grad():
        for tensor, device in zip(tensors, devices, strict=True):
            if tensor.device == device:
                moved.append(tensor)
            elif is_gpu(device):
                source = _from_pinned(tensor)
                if not is_used_here or source is tensor:
                    used.add(device)
                moved.append(source.to(device, non_blocking=True))
            else:
                moved.append(tensor.to(device))
    wait_for_current(used)
    return moved


def _from_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A small tensor in pinned memory: CUDA takes longer over other memory than copying it takes.
    Torch keeps the copy until the device has read it."""
    is_small = tensor.layout is torch.strided and tensor.nbytes <= _SMALL_BYTES
    return tensor.pin_memory() if is_small and is_on_host(tensor) else tensor


def begin_fetch(flat: torch.Tensor, address: int) -> None:
    """Begins to copy a tensor of bytes to host memory at `address`; `wait_for_current` with its
    device says when it is there."""
    window = (ctypes.c_char * flat.nbytes).from_address(address)
    torch.frombuffer(window, dtype=torch.uint8).copy_(flat, non_blocking=True)
