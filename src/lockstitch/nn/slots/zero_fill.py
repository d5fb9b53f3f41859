"""A node of the graph that brings zeros to parameters that nobody used."""

from __future__ import annotations

from typing import Any

import torch


class ZeroFill(torch.autograd.Function):
    """The first `count` tensors as they are; whoever goes back through them reaches the others too,
    with zeros: as parameters do that are broadcast in the original, used or not. Not so where
    gradients are differentiated themselves (`create_graph`), from then on: zeros would reach
    parameters with which the second derivatives have nothing to do."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.others = [(each.shape, each.dtype, each.device) for each in tensors[count:]]
        ctx.fills = True
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.fills = ctx.fills and not torch.is_grad_enabled()
        if not ctx.fills:
            return (None, *gradients, *[None] * len(ctx.others))
        zeros = [torch.zeros(s, dtype=dtype, device=d) for s, dtype, d in ctx.others]
        return (None, *gradients, *zeros)
