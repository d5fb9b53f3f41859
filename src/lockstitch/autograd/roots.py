"""What a backward pass may begin at: scalars with a history, each with the gradient one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.graph import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.autograd.graph import Gradients


def enter_at(roots: Sequence[torch.Tensor]) -> tuple[Entry, Gradients]:
    """Returns where the pass enters the graph, and with which gradients. Raises `RuntimeError` for
    unfit roots."""
    if not roots:
        raise RuntimeError("No tensors provided for gradient computation.")
    for root in roots:
        if not root.requires_grad:
            raise RuntimeError(
                f"requires_grad not set on root, {_describe(root)}: nothing of which it was "
                "computed wants a gradient, or that was done under no_grad"
            )
        if root.numel() != 1:
            raise RuntimeError(f"{_describe(root)} is not a scalar, all roots need to be scalar")
        if root.grad_fn is None:
            raise RuntimeError(
                f"{_describe(root)} does not have a valid gradient function: it was not computed "
                "of anything here. What comes from another worker has a history only if it was "
                "called for within the context"
            )
    edges = tuple([get_gradient_edge(root) for root in roots])
    return Entry(None, edges), tuple([torch.ones_like(root) for root in roots])


def _describe(root: torch.Tensor) -> str:
    return f"a tensor of shape {tuple(root.shape)} and {root.dtype}"
