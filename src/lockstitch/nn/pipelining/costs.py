"""What the parts of a model cost: the time of their passes, the memory that these keep, or their
parameters.

A part is tried with an example: forward, and backward from ones. That leaves no trace in the model:
gradients go nowhere, buffers are put back, and so is the generator of random numbers.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from lockstitch.nn.slots import generators
from lockstitch.nn.slots.lifting import fill, lift

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn

Measure = Literal["time", "memory", "parameters"]
MEASURES: Final = ("time", "memory", "parameters")
_TRIALS: Final = 3


def cost_of(
    run: Callable[..., Any],
    args: Any,
    parameters: Iterable[torch.Tensor],
    by: Measure,
) -> tuple[float, Any]:
    """What `run(*args)` costs, and what it returns, without a history. In seconds, forward and
    backward, of the fastest of three trials; or in bytes, of what is saved for the backward pass,
    with parameters and their gradients, or of the parameters alone."""
    owned = {id(each): each for each in parameters}
    weights = float(sum(each.nbytes for each in owned.values()))
    if by == "parameters":
        with torch.no_grad():
            return weights, run(*args)
    if by == "memory":
        saved, output = _bytes_saved(run, args, owned)
        return saved + 2 * weights, output
    seconds = float("inf")
    for _ in range(_TRIALS):
        taken, output = _seconds(run, args, list(owned.values()))
        seconds = min(seconds, taken)
    return seconds, output


@contextlib.contextmanager
def without_a_trace(module: nn.Module) -> Iterator[None]:
    """Within, the module may be tried; afterwards its buffers and the generators are as before."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with generators.kept(), torch.enable_grad():
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _begin(args: Any) -> tuple[Any, list[torch.Tensor]]:
    """The arguments, as leaves that want gradients where they can, and these."""
    skeleton, tensors = lift(args)
    leaves = [tensor.detach().clone() for tensor in tensors]
    wanting = [each.requires_grad_() for each in leaves if each.is_floating_point()]
    # In place operations may not write to leaves.
    return fill(skeleton, [each * 1 if each.requires_grad else each for each in leaves]), wanting


def _seconds(
    run: Callable[..., Any], args: Any, parameters: list[torch.Tensor]
) -> tuple[float, Any]:
    given, leaves = _begin(args)
    begun = time.perf_counter()
    output = run(*given)
    skeleton, tensors = lift(output)
    roots = [tensor for tensor in tensors if tensor.requires_grad]
    wanted = [*leaves, *(each for each in parameters if each.requires_grad)]
    if roots and wanted:
        ones = [torch.ones_like(root) for root in roots]
        torch.autograd.grad(roots, wanted, ones, allow_unused=True)
    taken = time.perf_counter() - begun
    return taken, fill(skeleton, [tensor.detach() for tensor in tensors])


def _bytes_saved(
    run: Callable[..., Any], args: Any, parameters: dict[int, torch.Tensor]
) -> tuple[float, Any]:
    own = {each.untyped_storage().data_ptr() for each in parameters.values()}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            sizes[memory.data_ptr()] = memory.nbytes()
        return tensor

    given, _ = _begin(args)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = run(*given)
    skeleton, tensors = lift(output)
    return float(sum(sizes.values())), fill(skeleton, [tensor.detach() for tensor in tensors])
