"""What happens inside a slot, of whichever kind: forward and backward passes through its replica.

The graph of a forward pass stays here until a backward pass has gone through it or the caller has
dropped its half. Gradients are handed to the caller, whose own parameters gather them: between two
passes there is no `.grad` in the slot.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from lockstitch.devices.kinds import HOST, is_host
from lockstitch.nn.slots import generators
from lockstitch.nn.slots.base import Gradients, Outcome
from lockstitch.nn.slots.lifting import fill, lift
from lockstitch.nn.slots.module_changes import (
    apply_changes,
    places_of_others,
    versions_of,
    written_since,
)
from lockstitch.nn.slots.untracked_leaves import UntrackedLeafSearch
from lockstitch.torch_internals.autograd import run_from_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.nn.slots.base import BackwardRequest, Request, VjpOf


_NOTE: Final = "lockstitch"


class _Graph(NamedTuple):
    """One forward pass, seen from its ends."""

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    is_shared: bool = False
    """Whether it shares nodes with that of the pass whose gradients it has computed, or with that
    which has computed its own. What the nodes have saved is then freed with the last of them."""


class _Source(torch.autograd.Function):
    """The beginning of the slot's graph: hands its tensors on as what is no leaf, so that a module
    may change its inputs in place, as it may without slots."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple([tensor.detach() for tensor in tensors])

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients


class Executor:
    """Runs the requests of one slot. `leaves` are the replica's parameters that want gradients, in
    the order in which the caller expects them; `device` is the replica's."""

    def __init__(
        self, module: torch.nn.Module, leaves: Sequence[torch.Tensor], device: torch.device = HOST
    ) -> None:
        self.device = device
        self._module = module
        self._modules = list(module.modules())
        self._others = places_of_others(self._modules)
        self.leaves = list(leaves)
        self._graphs: dict[int, _Graph] = {}
        self._sums: list[torch.Tensor | None] = []
        self._released: deque[int] = deque()
        self._untracked = UntrackedLeafSearch()
        # The engine looks up each node of the graph where it is told for which leaves to go back: a
        # twentieth of the time of a pass over small operators. Gathering in `.grad` needs no such
        # table; but it runs what a program has hooked to the accumulation, the caller's affair.
        self._gathers = is_host(device) and not any(map(_is_watched, self.leaves))
        self.draws_random_numbers = True
        """Whether passes are given random numbers of their own."""

    def release(self, number: int) -> None:
        """Forgets a graph, before the next request; may be called from anywhere, at any time."""
        self._released.append(number)

    def forward(self, request: Request) -> Outcome:
        """Runs the module. What it raises passes through."""
        self._drop_released()
        if request.changes:
            apply_changes(self._modules, self._others, request.changes)
        if torch.get_default_dtype() is not request.default_dtype:
            torch.set_default_dtype(request.default_dtype)
        inputs, given = _attach(request)
        before = versions_of(self._others)
        if request.modes.is_grad_enabled:
            self._untracked.begin_pass()
        with request.modes.active():
            args, kwargs = fill(request.skeleton, self.bring(given))
            del given
            if request.vjp_of is not None:
                inputs, output = self._vjp(request.vjp_of, args, inputs)
            else:
                if self.draws_random_numbers:
                    generators.seed(request.seed, self.device)
                output = self._module(*args, **kwargs)
        skeleton, outputs = lift(output)
        requires_grad = [tensor.requires_grad for tensor in outputs]
        if any(requires_grad):
            if request.vjp_of is None:
                self._untracked.end_pass(outputs, inputs, self.leaves, self._module.training)
            is_shared = request.vjp_of is not None
            self._graphs[request.number] = _Graph(inputs, outputs, is_shared)
        written = written_since(before, self._others)
        return Outcome(skeleton, [each.detach() for each in outputs], requires_grad, written)

    def backward(self, request: BackwardRequest) -> Gradients:
        """Goes back through the graph of a forward pass."""
        self._drop_released()
        graph = self._take(request.number, keeps=request.keeps_graph)
        roots, gradients = _roots_of(graph, request.gradients)
        sources = [*graph.inputs, *self.leaves]
        found: Sequence[torch.Tensor | None] = [None] * len(sources)
        if roots and sources:
            # A re-entrant checkpoint gathers gradients in `.grad`, and refuses to go back else.
            gathers = self._gathers or self._untracked.is_reentrant
            try:
                keeps_graph = request.keeps_graph or graph.is_shared
                found = run_from_tensors(roots, gradients, () if gathers else sources, keeps_graph)
            finally:
                if gathers:  # also what a pass has gathered that failed
                    found = tuple([_taken(source) for source in sources])
        of_inputs, of_leaves = found[: len(graph.inputs)], found[len(graph.inputs) :]
        if request.keeps_gradients:
            self._add(of_leaves)
            return Gradients(of_inputs)
        return Gradients(of_inputs, of_leaves)

    def _vjp(
        self,
        vjp_of: VjpOf,
        gradients: Sequence[torch.Tensor | None],
        own_inputs: list[torch.Tensor],
    ) -> tuple[list[torch.Tensor], tuple[torch.Tensor | None, ...]]:
        """The gradients of an earlier pass as functions of all that they depend on, of which the
        inputs are returned first. Its graph has what was in force in that pass: modes, buffers,
        random numbers."""
        number, keeps = vjp_of
        graph = self._take(number, keeps=keeps)
        if keeps:
            self._graphs[number] = graph._replace(is_shared=True)
        roots, given = _roots_of(graph, gradients)
        found = torch.autograd.grad(
            roots,
            [*graph.inputs, *self.leaves],
            given,
            retain_graph=True,
            create_graph=True,
            allow_unused=True,
        )
        return [*graph.inputs, *own_inputs], found

    def _take(self, number: int, *, keeps: bool) -> _Graph:
        graph = self._graphs.get(number)
        if graph is None:
            raise RuntimeError(
                "the graph of this slot's forward pass is gone: the slot was replaced meanwhile"
            )
        if not keeps:
            del self._graphs[number]
        return graph

    def bring(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The arguments, on the graph, where the replica can take them."""
        return tensors

    def collect(self) -> list[torch.Tensor | None]:
        """The gradients that have stayed here, which are then forgotten."""
        sums, self._sums = self._sums, []
        return sums

    def _add(self, gradients: Sequence[torch.Tensor | None]) -> None:
        if not self._sums:
            self._sums = [None] * len(gradients)
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                total = self._sums[i]
                self._sums[i] = gradient if total is None else total + gradient

    def _drop_released(self) -> None:
        while self._released:
            self._graphs.pop(self._released.popleft(), None)


def _roots_of(
    graph: _Graph, gradients: Sequence[torch.Tensor | None]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs to go back from, with their gradients."""
    wanting = [output for output in graph.outputs if output.requires_grad]
    pairs = [(o, g) for o, g in zip(wanting, gradients, strict=True) if g is not None]
    return [output for output, _ in pairs], [gradient for _, gradient in pairs]


def _attach(request: Request) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The leaves whose gradients will be asked for, and what the module is called with."""
    given = list(request.tensors)
    if not any(request.wants_gradient):
        return [], given
    places = [i for i, wants in enumerate(request.wants_gradient) if wants]
    leaves = [given[i].detach().requires_grad_() for i in places]
    with torch.enable_grad():
        attached = _Source.apply(*leaves)  # type: ignore[no-untyped-call]
    for i, tensor in zip(places, attached, strict=True):
        given[i] = tensor
    return leaves, given


def _is_watched(leaf: torch.Tensor) -> bool:
    """Whether somebody keeps the node that adds to this leaf's `.grad`, as those do who have hooked
    something to it: then it is the same node, with the same notes, when it is asked for again."""
    if leaf.is_inference():
        return True  # it has no such node
    with torch.inference_mode(False), torch.enable_grad():
        _notes_of(leaf)[_NOTE] = True
        return _NOTE in _notes_of(leaf)


def _notes_of(leaf: torch.Tensor) -> dict[str, Any]:
    notes: Any = torch.autograd.graph.get_gradient_edge(leaf).node.metadata
    return notes  # type: ignore[no-any-return]


def _taken(leaf: torch.Tensor) -> torch.Tensor | None:
    """The gradient that has been gathered, which the leaf then forgets."""
    gradient, leaf.grad = leaf.grad, None
    return gradient
