"""The inputs of `grad`: tensors of this worker, and references to tensors of others.

The gradient of a tensor stays where the tensor is. So a reference among the inputs has a reference
to its gradient for result, and each owner is asked twice, however many of its tensors are chosen:
before the pass, to note which they are, and after it, for references to what has arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.context import set_current_context
from lockstitch.autograd.service import AutogradService
from lockstitch.rref.rref import RRef
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.autograd.graph import GradientEdge

    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.ids import GlobalId, WorkerId

Input: TypeAlias = "torch.Tensor | RRef[torch.Tensor]"
Result: TypeAlias = "torch.Tensor | RRef[torch.Tensor] | None"


def edge_of(tensor: torch.Tensor, what: str) -> GradientEdge:
    """Where the gradient of a tensor arrives. Raises `RuntimeError` where it has none; `what` it
    is."""
    if not tensor.requires_grad:
        raise RuntimeError(
            f"{what}, a tensor of shape {tuple(tensor.shape)} and {tensor.dtype}, does not require "
            "grad"
        )
    return get_gradient_edge(tensor)


def _edge_at(place: int, given: Input) -> GradientEdge:
    """Where the gradient of an input arrives, on the worker that has the tensor."""
    if not isinstance(given, RRef):
        return edge_of(given, f"inputs[{place}]")
    value: object = given.local_value()
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"inputs[{place}] refers to a {type(value).__name__}, not to a tensor: {given}"
        )
    return edge_of(value, f"the value of inputs[{place}]")


def _reference_to(gradient: torch.Tensor | None) -> RRef[torch.Tensor] | None:
    return None if gradient is None else RRef(gradient)


class Inputs:
    """Tensors and references, in their order; the `Elsewhere` of one pass."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._worker = current_worker()
        self._inputs = inputs
        self._here: list[int] = []
        self._there: dict[WorkerId, list[int]] = {}
        self._found: dict[int, Result] = {}
        self.edges: list[GradientEdge] = []
        """Those of the tensors of this worker, also of those that are given by reference."""
        for place, each in enumerate(inputs):
            if isinstance(each, RRef) and not each.is_owner():
                self._there.setdefault(each.owner().worker, []).append(place)
            else:
                self._here.append(place)
                self.edges.append(_edge_at(place, each))

    def results(self, here: Sequence[torch.Tensor | None]) -> list[Result]:
        """The gradients in the order of the inputs; `here` are those of this worker's tensors."""
        found = dict(self._found)
        for place, gradient in zip(self._here, here, strict=True):
            is_given_by_reference = isinstance(self._inputs[place], RRef)
            found[place] = _reference_to(gradient) if is_given_by_reference else gradient
        return [found[place] for place in range(len(self._inputs))]

    def select(self, context: DistAutogradContext, backward_pass: GlobalId) -> None:
        """See `service.Elsewhere`. Raises what an owner raises: `RuntimeError` for a tensor that
        does not require grad, say."""
        futures = [
            self._ask(context, owner, _select, backward_pass, places, self._inputs_at(places))
            for owner, places in self._there.items()
        ]
        for future in futures:
            future.wait()

    def take(self, context: DistAutogradContext, backward_pass: GlobalId) -> None:
        """See `service.Elsewhere`."""
        futures = [
            (places, self._ask(context, owner, _take, backward_pass))
            for owner, places in self._there.items()
        ]
        for places, future in futures:
            self._found.update(zip(places, future.wait(), strict=True))

    def _inputs_at(self, places: Sequence[int]) -> list[Input]:
        return [self._inputs[place] for place in places]

    def _ask(
        self,
        context: DistAutogradContext,
        owner: WorkerId,
        function: Callable[..., Any],
        *arguments: object,
    ) -> torch.futures.Future[Any]:
        outer = set_current_context(context)  # which the owner joins, if it is new to it
        try:
            arguments = (context.id, *arguments)
            return self._worker.agent.outgoing.call_async(owner, function, arguments)
        finally:
            set_current_context(outer)


def _context(identifier: int) -> DistAutogradContext:
    return current_worker().service(AutogradService).find_context(identifier)


@needed
def _select(
    context_id: int,
    backward_pass: GlobalId,
    places: Sequence[int],
    references: Sequence[RRef[torch.Tensor]],
) -> None:
    """Notes the values of `references` for the pass; runs on their owner."""
    edges = [_edge_at(*each) for each in zip(places, references, strict=True)]
    _context(context_id).select(backward_pass, edges)


@needed
def _take(context_id: int, backward_pass: GlobalId) -> list[RRef[torch.Tensor] | None]:
    """References to what has arrived, None for nothing; runs on the owner of the tensors."""
    gradients = _context(context_id).selection_of(backward_pass).take()
    return [_reference_to(gradient) for gradient in gradients]
