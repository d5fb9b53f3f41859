"""What a backward pass may begin at: scalars with a history, each with the gradient one; or tensors
of any shape, with gradients that are given."""

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


def enter_with(
    outputs: Sequence[torch.Tensor], grad_outputs: Sequence[torch.Tensor | None] | None
) -> tuple[Entry, Gradients]:
    """Returns where the pass enters the graph, and with which gradients: those of `grad_outputs`,
    for which None stands at scalars only, and then for one. Raises `RuntimeError` for what does not
    fit, `ValueError` where there are not as many."""
    given = [None] * len(outputs) if grad_outputs is None else list(grad_outputs)
    if len(given) != len(outputs):
        raise ValueError(f"got {len(outputs)} outputs and {len(given)} grad_outputs")
    gradients = []
    for place, (output, gradient) in enumerate(zip(outputs, given, strict=True)):
        if not output.requires_grad:
            raise RuntimeError(
                f"outputs[{place}], {_describe(output)}, does not require grad: nothing of which "
                "it was computed does, or that was done under no_grad, or on another worker "
                "outside the context"
            )
        if gradient is None and output.numel() != 1:
            raise RuntimeError(
                f"outputs[{place}] is {_describe(output)}: grad_outputs says with which gradient "
                "to begin, since only that of a scalar is one by itself"
            )
        if gradient is not None and gradient.shape != output.shape:
            raise RuntimeError(
                f"grad_outputs[{place}] is {_describe(gradient)}, outputs[{place}] "
                f"{_describe(output)}: they have the same shape"
            )
        gradients.append(torch.ones_like(output) if gradient is None else gradient)
    edges = tuple([get_gradient_edge(output) for output in outputs])
    return Entry(None, edges), tuple(gradients)


def _describe(root: torch.Tensor) -> str:
    return f"a tensor of shape {tuple(root.shape)} and {root.dtype}"
