"""Host memory that GPUs copy from and to at the speed of the bus: it is registered with CUDA, whole
pages of it, none of them twice."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any, Final

import torch

from lockstitch.devices.kinds import HOST

_MOST_KEPT: Final = 64 << 20


def staging_bytes(size: int) -> torch.Tensor:
    """Host memory for what a device copies out, pinned where torch may keep it for the next time:
    it never gives that back. CUDA is in use."""
    return torch.empty(size, dtype=torch.uint8, device=HOST, pin_memory=size <= _MOST_KEPT)


def register(address: int, size: int, device: torch.device | None = None) -> bool:
    """Locks memory for copies to and from GPUs, in the context of `device` (by default the current
    one). False where that is not possible: copies are as right then, but slower. CUDA is in use."""
    with contextlib.nullcontext() if device is None else torch.cuda.device(device):
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(address, size, 0)) == 0:
            return True
        # CUDA keeps an error until somebody asks; the next kernel does.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda" if device is None else device)
    return False


def unregister(address: int) -> None:
    """The inverse of a `register` that was possible."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaHostUnregister(address)


def pin(owner: Any, address: int, size: int) -> None:
    """Registers memory until `owner` is gone, whose it is. Does nothing where that is not possible.
    CUDA is in use."""
    if register(address, size):
        weakref.finalize(owner, _unpin, address, os.getpid()).atexit = False


def _unpin(address: int, process: int) -> None:
    if os.getpid() == process:
        unregister(address)
