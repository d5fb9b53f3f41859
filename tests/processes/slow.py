"""A backward pass that takes long, or never ends: something to wait for."""

from __future__ import annotations

import threading
from typing import Any

import torch


class Slow(torch.autograd.Function):
    """Doubles; its backward waits for so many seconds first, for ever with None."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, seconds: float | None) -> torch.Tensor:
        ctx.seconds = seconds
        return tensor * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        threading.Event().wait(ctx.seconds)
        return 2 * gradient, None


def pass_through_slow(tensor: torch.Tensor, seconds: float | None = None) -> torch.Tensor:
    return Slow.apply(tensor, seconds)  # type: ignore[no-any-return,no-untyped-call]
