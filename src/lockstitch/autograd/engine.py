"""Running one component with torch's own engine, each node once, on the full sum.

    worker A (initiator)            worker B                        worker C
    ────────────────────            ────────────────────            ─────────────────
    loss
     └─ recv y ─────── [3] ───────► send y   [1]
                                     └─ recv z ──────── [3] ───────► send z
                                     └─ param p  [4]                  └─ …
                                    [5] report to A

    [1] the gradients of a sent tensor arrive and become roots of the component that holds it
    [2] with its roots complete, the component runs: one call of the engine
    [3] a receive on the way hands its gradients to the wire at once
    [4] what arrives at leaves is added to the context
    [5] then, not earlier, the run is reported

Where a component feeds itself through another worker (a receive above a send of the same
component), [2] cannot wait for all roots. Then the run *blocks*: each missing root is the alias
node of the sent tensor, with a hook that waits until the gradient is there, or known not to come.

Such runs cannot deadlock if waiting nodes run last, the newest send first: the gradient of a send
depends only on nodes created after it was sent, and every worker waits only for its newest send
that is unfinished, so along a chain of waits creation times grow, and no chain can close. The
engine picks among ready nodes the one with the greatest sequence number; so aliases get small
numbers, in the order of their creation, and whatever has a number as small is lifted above them.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch.autograd.grad_mode import set_multithreading_enabled
from torch.autograd.graph import GradientEdge

from lockstitch.autograd.graph import interior_nodes
from lockstitch.autograd.stitch import ANCHOR, arriving_at
from lockstitch.modes import in_plain_modes
from lockstitch.torch_internals.autograd import (
    AccumulateGrad,
    input_metadata,
    node_hooks,
    node_prehooks,
    run_engine,
    sequence_number,
    set_sequence_number,
    tensor_hooks,
)
from lockstitch.wire.staging import arrive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.graph import Component, Entry, Gradients
    from lockstitch.autograd.narrowing import End
    from lockstitch.autograd.stitch import GradientSink
    from lockstitch.ids import GlobalId
    from lockstitch.torch_internals.autograd import Node


class GradientStore(Protocol):
    """Where the gradients of leaves go: a context, or what a pass has chosen (`Selection`)."""

    def add_gradients(
        self,
        leaves: Sequence[GradientEdge],
        gradients: list[torch.Tensor | None],
        *,
        keep_history: bool = False,
    ) -> None:
        """Adds what one run has captured at `leaves`, with its history if that is to be kept."""
        ...


class _Running(threading.local):
    """The context that this thread runs a component of."""

    context: DistAutogradContext | None = None


RUNNING = _Running()
"""What this thread runs."""


def is_run_by_this_thread(context: DistAutogradContext) -> bool:
    """Returns whether the calling code is part of a backward pass of `context`: a hook, for
    example."""
    return RUNNING.context is context


class ComponentRun(NamedTuple):
    """A component to run: its leaves' gradients go to `store`, those of receives to `sink`. With
    `create_graph` they have a history."""

    component: Component
    store: GradientStore
    retain_graph: bool
    sink: GradientSink
    create_graph: bool = False
    ends: tuple[End, ...] | None = None
    """In a pass that selects: the receives, to be captured instead of run (see `narrowing`)."""
    unwanted: tuple[Node, ...] = ()
    """Receives whose gradients nobody wants."""

    def run(self, arrived: dict[GlobalId | None, Gradients | None]) -> None:
        """Steps [2] to [4] with all roots there. Null tokens only: nothing runs.

        `arrived` is emptied, so that a gradient which passes straight to a leaf can be stolen.
        """
        edges, gradients = self._roots(arrived)
        if not edges:
            return
        captured = self._pass_straight(edges, gradients)
        if captured is None:
            self._run_engine(edges, gradients)
        else:
            self._keep(captured)

    def _pass_straight(
        self, edges: list[GradientEdge], gradients: list[torch.Tensor]
    ) -> list[torch.Tensor | None] | None:
        """Returns what the engine would capture, without it, where all that was sent are leaves:
        then there is no node to run. None in all other cases; else `gradients` is emptied."""
        leaves = self.component.leaves
        if (
            self.component.receives
            or self.component.hooked
            or self.ends is not None
            or len(edges) > len(leaves)
            or type(edges[0].node) is not AccumulateGrad
        ):
            return None
        places = {leaf.node: place for place, leaf in enumerate(leaves)}
        if len(places) < len(leaves):  # one was chosen twice
            return None
        for edge, gradient in zip(edges, gradients, strict=True):
            if places.pop(edge.node, None) is None or not _fits(gradient, _leaf(edge)):
                return None
        del gradient
        captured: list[torch.Tensor | None] = [None] * len(leaves)
        places = {leaf.node: place for place, leaf in enumerate(leaves)}
        while gradients:
            captured[places[edges.pop().node]] = gradients.pop()
        return captured

    def run_blocking(
        self,
        arrived: dict[GlobalId | None, Gradients | None],
        awaited: Sequence[tuple[Entry, Iterable[int]]],
        wait: Callable[[Entry], Gradients | None],
    ) -> None:
        """Steps [2] to [4] while roots are missing: `awaited` are the entries, and which of their
        tensors; `wait(entry)` blocks until their gradients are there (None: there will be none).

        It may block for long: give it a thread of its own.
        """
        if not awaited:  # what was missing has come meanwhile
            self.run(arrived)
            return
        edges, gradients = self._roots(arrived)
        handles = []
        _let_waiting_nodes_run_last(self.component, [entry for entry, _ in awaited])
        try:
            for entry, indices in awaited:
                for index in indices:
                    alias = entry.aliases[index]
                    edges.append(GradientEdge(alias, 0))
                    gradients.append(_placeholder(alias))
                    handles.append(alias.register_prehook(_waiting_hook(entry, index, wait)))
            # With threads of its own, the engine could wait for this one while this one waits here.
            with set_multithreading_enabled(False):
                self._run_engine(edges, gradients)
        finally:
            for handle in handles:
                handle.remove()

    def _roots(
        self, arrived: dict[GlobalId | None, Gradients | None]
    ) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        """Step [1]: the edges at which gradients are there, and the gradients."""
        edges: list[GradientEdge] = []
        gradients: list[torch.Tensor] = []
        for entry in self.component.entries:
            there = arrived.get(entry.message)
            if there is not None:
                if entry.devices is not None:
                    there = tuple(arrive(there, entry.devices, keep_history=self.create_graph))
                for edge, gradient in zip(entry.edges, there, strict=True):
                    if gradient is not None:
                        edges.append(edge)
                        gradients.append(gradient)
        arrived.clear()
        return edges, gradients

    def _run_engine(self, edges: list[GradientEdge], gradients: list[torch.Tensor]) -> None:
        component = self.component
        if self.ends is not None:
            self._run_to_the_ends(edges, gradients, self.ends)
            return
        inputs = component.leaves
        if component.receives or not inputs:
            inputs = (*inputs, ANCHOR)
        with arriving_at(self.sink, component.receives, self.unwanted):
            captured = run_engine(edges, gradients, inputs, self.retain_graph, self.create_graph)
        gradients.clear()
        if not component.hooked:
            self._keep(captured)
            return
        # The engine runs hooks of tensors, but not those of a node that it captures.
        with torch.set_grad_enabled(self.create_graph):
            for index in component.hooked:
                _change_by_prehooks(component.leaves[index].node, captured, index)
            self._keep(captured)
            for index in component.hooked:
                gradient = captured[index]
                if gradient is not None:
                    for hook in node_hooks(component.leaves[index].node):
                        hook((), (gradient,))

    def _keep(self, captured: list[torch.Tensor | None]) -> None:
        self.store.add_gradients(self.component.leaves, captured, keep_history=self.create_graph)

    def _run_to_the_ends(
        self, edges: list[GradientEdge], gradients: list[torch.Tensor], ends: Sequence[End]
    ) -> None:
        """Runs what leads to the leaves and to `ends`, and nothing else."""
        leaves = self.component.leaves
        places = [(end, index, edge) for end in ends for index, edge in end.edges.items()]
        inputs = (*leaves, *[edge for _, _, edge in places])
        if not inputs:  # the engine would take that for all leaves
            return
        captured = run_engine(edges, gradients, inputs, self.retain_graph, self.create_graph)
        gradients.clear()
        found: dict[int, list[torch.Tensor | None]] = {}
        for (end, index, _), gradient in zip(places, captured[len(leaves) :], strict=True):
            if gradient is not None:
                found.setdefault(id(end), [None] * end.size)[index] = gradient
        for end in ends:
            if id(end) in found:
                self.sink.emit(end.receive, tuple(found[id(end)]))
        self._keep(captured[: len(leaves)])


def _change_by_prehooks(node: Node, captured: list[torch.Tensor | None], index: int) -> None:
    if captured[index] is not None:
        for hook in node_prehooks(node):
            changed = hook((captured[index],))
            if changed is not None:
                captured[index] = changed if isinstance(changed, torch.Tensor) else changed[0]


def _leaf(edge: GradientEdge) -> torch.Tensor:
    leaf: torch.Tensor = edge.node.variable  # type: ignore[attr-defined]
    return leaf


def _fits(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Returns whether the engine would hand `gradient` to the leaf as it is."""
    return (
        gradient.shape == leaf.shape
        and gradient.dtype is leaf.dtype
        and gradient.layout is leaf.layout is torch.strided
        and gradient.device == leaf.device
        and not tensor_hooks(leaf)
    )


def _let_waiting_nodes_run_last(component: Component, awaited: Sequence[Entry]) -> None:
    highest = max(entry.order for entry in awaited)
    for node in interior_nodes(component.entries):
        number = sequence_number(node)
        if number <= highest:
            set_sequence_number(node, number + highest + 1)
    for entry in awaited:
        for alias in entry.aliases:
            set_sequence_number(alias, entry.order)


def _placeholder(alias: Node) -> torch.Tensor:
    """Zeros of the form of the alias's gradient, without memory of their own."""
    form = input_metadata(alias)[0]
    return _zero(form.dtype, form.device).expand(form.shape)


@functools.cache
@in_plain_modes
def _zero(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros((), dtype=dtype, device=device)


def _waiting_hook(
    entry: Entry, index: int, wait: Callable[[Entry], Gradients | None]
) -> Callable[[tuple[torch.Tensor | None, ...]], tuple[torch.Tensor | None]]:
    def wait_for_gradient(
        _placeholders: tuple[torch.Tensor | None, ...],
    ) -> tuple[torch.Tensor | None]:
        gradients = wait(entry)
        gradient = None if gradients is None else gradients[index]
        if gradient is not None and entry.devices is not None:
            on = entry.devices[index]
            (gradient,) = arrive([gradient], [on], keep_history=torch.is_grad_enabled())
        if gradient is not None and gradient.layout is not torch.strided:
            gradient = gradient.to_dense()  # a hook may not change the layout of its placeholder
        return (gradient,)

    return wait_for_gradient
