"""Large gradients added to those of the micro-batches before where they arise, one by one.

What a backward pass captures is there until its end, all of it at once, and by then has left the
caches of the processor. So where much is captured the engine runs the nodes of the leaves instead,
and before each a hook of ours adds its gradient to the context's and leaves the node nothing to do:
`.grad` stays as it is. The node is everybody's, so the hook looks who runs it. That is sure only on
the host, where the engine runs in the thread that calls it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from lockstitch.autograd.stitch import ANCHOR, arriving_at
from lockstitch.devices.kinds import is_on_host
from lockstitch.torch_internals.autograd import run_past_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.graph import Component, Gradients
    from lockstitch.autograd.stitch import GradientSink

LARGE_BYTES: Final = 1 << 20
"""About what a processor's own cache holds: for less there is nothing to gain."""


def run_adding(
    component: Component,
    roots: list[torch.Tensor],
    context: DistAutogradContext,
    sink: GradientSink,
) -> bool:
    """Runs a component of one entry so, from `roots`; gradients of inputs go to `sink`. False: it
    has not run, since there is nothing to add to, or a leaf that this is not right for."""
    sums = context.sums_at(component.leaves)
    if not sums or component.hooked or not all(map(is_on_host, (*sums, *roots))):
        return False
    thread = threading.get_ident()
    adders = [_adder(context, each, thread) for each in sums]
    with arriving_at(sink, component.receives):
        return run_past_leaves(component.entries[0].edges, roots, component.leaves, adders, ANCHOR)


def _adder(
    context: DistAutogradContext, total: torch.Tensor, thread: int
) -> Callable[[Gradients], Gradients | None]:
    def add(gradients: Gradients) -> Gradients | None:
        (gradient,) = gradients
        if gradient is None or threading.get_ident() != thread:
            return None
        context.add_to(total, gradient)
        return (None,)

    return add
