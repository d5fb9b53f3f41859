"""Replicas of a model on several ranks, `DistributedDataParallel`, inside a context.

DDP's reducer listens to the nodes at which gradients arrive in `.grad`. In a context they arrive
elsewhere, so it would hear nothing, and the replicas would drift apart without a word. Therefore:

    forward    a context notes each DDP module that runs in it
    backward   the leaves that get a gradient are noted too
    the end    for each such module, its context's gradients are put in place of `.grad`, and its
               reducer is told, within a small backward pass of its own, that they have arrived

All else is DDP's own: buckets, communication hooks, `no_sync`, unused parameters, uneven inputs.
And so is its rule that all ranks run the same passes in the same order. The end is that of the
whole pass on the worker that called `backward`, for all its modules in the order of their
forwards; on a worker that a pass only reaches, it is the end of each run there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

from lockstitch.torch_internals.distributed import (
    claim_static_graph,
    parameters_of_reducer,
    reduce_at_the_end,
    tell_reducer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping


class ReplicaContext(Protocol):
    """A context, as far as it has to do with replicas."""

    def note_replica(
        self, module: DistributedDataParallel, parameters: list[torch.nn.Parameter]
    ) -> None:
        """`module` has run forward in it; `parameters` as its reducer counts them."""
        ...


class Replicas:
    """The DDP modules that ran in one context on one worker."""

    def __init__(self) -> None:
        self._modules: dict[DistributedDataParallel, list[torch.nn.Parameter]] = {}
        self._looking: set[DistributedDataParallel] = set()
        """Modules of a static graph, in their first pass: they reduce everything at its end."""
        self._fresh: dict[torch.Tensor, None] = {}

    def __repr__(self) -> str:
        return f"<Replicas · {len(self._modules)} modules · {len(self._fresh)} fresh gradients>"

    def note(self, module: DistributedDataParallel, parameters: list[torch.nn.Parameter]) -> None:
        """`module` has run forward; `parameters` as its reducer counts them."""
        self._modules[module] = parameters
        if claim_static_graph(module):
            self._looking.add(module)

    def note_gradients(self, leaves: Iterable[torch.Tensor]) -> None:
        """A gradient has arrived at each of `leaves`."""
        self._fresh.update(dict.fromkeys(leaves))

    def reduce(self, gradients: MutableMapping[torch.Tensor, torch.Tensor]) -> None:
        """Has each module reduce what has arrived since the last time: `gradients` are then those
        that DDP would have left in `.grad`. Blocks until the other ranks have come as far."""
        fresh, self._fresh = self._fresh, {}
        for module, parameters in self._modules.items():
            ready = [i for i, parameter in enumerate(parameters) if parameter in fresh]
            if ready:
                announce = functools.partial(
                    _announce, module, ready[::-1], module in self._looking
                )
                self._looking.discard(module)
                _reduce(announce, parameters, gradients)


def _reduce(
    announce: Callable[[], None],
    parameters: list[torch.nn.Parameter],
    gradients: MutableMapping[torch.Tensor, torch.Tensor],
) -> None:
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = gradients.get(parameter)
    try:
        _within_a_backward_pass(announce)
    finally:
        after = [parameter.grad for parameter in parameters]
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
    for parameter, gradient in zip(parameters, after, strict=True):
        known = gradients.get(parameter)
        if gradient is known or gradient is None:
            continue
        # It may be a view of the reducer's own memory, or a gradient that only others have had.
        gradients[parameter] = gradient.detach().clone()


def _announce(module: DistributedDataParallel, ready: Iterable[int], is_first: bool) -> None:
    for index in ready:
        tell_reducer(module, index)
    if is_first:
        reduce_at_the_end(module)


def _within_a_backward_pass(action: Callable[[], None]) -> None:
    """Calls `action` where the reducer expects to be told: it waits for the other ranks at the end
    of the pass in which its last gradient came."""
    with torch.enable_grad():
        leaf = torch.zeros((), requires_grad=True)
        root = leaf.clone()
    assert root.grad_fn is not None
    root.grad_fn.register_prehook(lambda _gradients: action())
    torch.autograd.grad(root, leaf)


def observe(current: Callable[[], ReplicaContext | None]) -> None:
    """Has every forward of a DDP module noted by the context that `current()` says it runs in."""
    forward: Any = DistributedDataParallel.forward
    if hasattr(forward, "_notes_replicas"):
        return
    counted: WeakKeyDictionary[DistributedDataParallel, list[torch.nn.Parameter]]
    counted = WeakKeyDictionary()

    @functools.wraps(forward)
    def noting(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        output = forward(self, *inputs, **kwargs)
        context = current()
        if context is not None and torch.is_grad_enabled():
            if self not in counted:
                counted[self] = parameters_of_reducer(self)
            context.note_replica(self, counted[self])
        return output

    noting._notes_replicas = True  # type: ignore[attr-defined]
    DistributedDataParallel.forward = noting  # type: ignore[method-assign]
