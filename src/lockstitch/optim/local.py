"""One owner's share of a distributed optimizer: a plain `torch.optim` optimizer that may step while
other trainers' backward passes are in flight.

An optimizer writes into its parameters in place. Autograd notices: a graph that saved such a
parameter in its forward pass refuses to go backward ("modified by an inplace operation"), because
`add_` advanced the version counter that the graph remembers. With several trainers on one parameter
server that is the normal state of affairs, so here the optimizer never sees the parameters
themselves:

    parameter  ──┐
                 ├── one storage: an update through the alias is an update of the parameter
    alias      ──┘   two version counters: no graph that saved the parameter hears of it

What this means for the numbers (*Hogwild*, Niu et al. 2011): a backward pass overtaken by another
trainer's step uses activations of the weights it went forward with, and, where it multiplies by a
weight, that weight's value of now, read without a lock. Such a gradient is off by what the others
moved meanwhile, as in every asynchronous scheme. Without a concurrent step nothing is off: results
equal those of the plain optimizer bit by bit. The price: stepping between a forward pass and its
own *second* backward is no longer noticed.

Steps on the same parameters exclude each other through a lock, so that no update is lost.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.optim import eager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer


class LocalOptimizer:
    """An optimizer over `parameters`, tensors of this process, that steps under `lock`.

    `optim` is the `optimizer_class(aliases, *args, **kwargs)` that does the work; its parameter
    groups hold the aliases. Whatever that constructor raises is raised here.
    """

    def __init__(
        self,
        optimizer_class: Callable[..., Optimizer],
        parameters: Iterable[torch.Tensor],
        lock: AbstractContextManager[Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self._pairs = [(parameter, _alias(parameter)) for parameter in parameters]
        self._lock = lock
        aliases = [alias for _, alias in self._pairs]
        self.optim = eager.make(optimizer_class, aliases, *args, **kwargs)

    def step(self, gradients: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Updates each parameter that has a gradient among `gradients`; leaves the others alone.

        The parameters' own `.grad` are neither read nor written.
        """
        with self._lock:
            for parameter, alias in self._pairs:
                # A program may have given the parameter another storage (`.to`, `.data =`).
                alias.data = parameter.data
                alias.grad = gradients.get(parameter)
            try:
                eager.step(self.optim)
            finally:
                for parameter, alias in self._pairs:
                    alias.grad = None
                    if parameter is not alias and not parameter.is_set_to(alias):
                        # The optimizer replaced the storage instead of writing into it.
                        parameter.data = alias.data

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the optimizer between two steps; parameters are numbered in their
        order."""
        with self._lock:
            return copy.deepcopy(eager.method(self.optim, "state_dict")())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from that state. Raises `ValueError` where it does not fit."""
        with self._lock:
            eager.method(self.optim, "load_state_dict")(state)


def _alias(parameter: Any) -> Any:
    """A leaf with the storage of `parameter` and a version counter of its own.

    What is no leaf tensor is passed on as it is, for the optimizer to refuse in its own words; so
    are sparse tensors, whose memory is not one storage.
    """
    if not isinstance(parameter, torch.Tensor):
        return parameter
    if not parameter.is_leaf or parameter.layout != torch.strided:
        return parameter
    # `.data`, unlike `.detach()`, does not share the version counter.
    return parameter.data.requires_grad_(parameter.requires_grad)
