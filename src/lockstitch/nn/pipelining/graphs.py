"""The graph of one micro-batch in one stage, from its forward to its backward pass.

It begins with receives, as that of a call does (`autograd.stitch`), and its backward pass is that
of a component of a distributed pass (`autograd.engine`): gradients of leaves go into the context,
those of inputs are collected and returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lockstitch.autograd.engine import ComponentRun
from lockstitch.autograd.graph import Component, Entry, find_components
from lockstitch.autograd.stitch import RECEIVE_NODE, stitch_receive
from lockstitch.devices.kinds import is_host, is_on_host
from lockstitch.ids import GlobalId
from lockstitch.nn.pipelining.adding import LARGE_BYTES, run_adding
from lockstitch.nn.pipelining.weight_pass import WeightPass, split_backward
from lockstitch.wire.staging import arrive

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.stitch import Receive
    from lockstitch.nn.pipelining.known_leaves import KnownLeaves
    from lockstitch.nn.pipelining.skips import SkipReference
    from lockstitch.torch_internals.autograd import Node

_UNNAMED: Final = GlobalId(0, 0, 0)
"""Receives of stages take no part in distributed passes, and need no name."""


class Values(NamedTuple):
    """What goes from stage to stage: a structure with holes for its tensors, these, and which of
    them want gradients."""

    skeleton: Any
    tensors: list[torch.Tensor]
    wanted: Sequence[bool]


class Gradients(NamedTuple):
    """What a backward pass begins with: gradients of outputs, in their order, and those of what
    later stages have fetched, each with the number of what it is of."""

    outputs: Sequence[torch.Tensor | None]
    skips: Sequence[tuple[int, torch.Tensor | None]] = ()


class InputGradients(NamedTuple):
    """What a backward pass leaves for other stages: gradients of inputs, in their order, and those
    of what was fetched from earlier stages."""

    inputs: list[torch.Tensor | None]
    skips: dict[SkipReference, torch.Tensor | None]


class Graph:
    """A micro-batch's graph. What is kept are the edges at which gradients will enter, not the
    outputs."""

    def __init__(self, known: KnownLeaves) -> None:
        self._known = known
        self._inputs: list[Node | None] = []
        self._fetched: dict[SkipReference, Node | None] = {}
        self._edges: list[GradientEdge | None] = []
        self._devices: list[torch.device] = []
        self._outputs = 0
        """How many of the edges are of outputs; the others are of what later stages may fetch."""
        self._weights: WeightPass | None = None

    # ------------------------------------------------------------ forward

    def enter(self, tensor: torch.Tensor, wanted: bool) -> torch.Tensor:
        """The next input as the module sees it: with a graph that begins here, where a gradient is
        wanted."""
        receive = None
        if wanted:
            tensor, receive = _begin(tensor)
        self._inputs.append(receive)
        return tensor

    def enter_fetched(self, skip: SkipReference, tensor: torch.Tensor) -> torch.Tensor:
        """What was fetched, likewise."""
        tensor, self._fetched[skip] = _begin(tensor)
        return tensor

    def leave(
        self,
        outputs: Sequence[torch.Tensor],
        stashed: Sequence[torch.Tensor],
        fetched: Iterable[SkipReference],
    ) -> list[bool]:
        """Notes where gradients will enter, and that for all that was `fetched` one has to be sent,
        be it none; returns which outputs want one."""
        for tensor in (*outputs, *stashed):
            self._edges.append(get_gradient_edge(tensor) if tensor.requires_grad else None)
            self._devices.append(tensor.device)
        self._outputs = len(outputs)
        for skip in fetched:
            self._fetched.setdefault(skip)
        return [tensor.requires_grad for tensor in outputs]

    # ------------------------------------------------------------ backward

    def run_backward(
        self, context: DistAutogradContext, given: Gradients, *, splits: bool = False
    ) -> InputGradients:
        """Goes back through the graph from the gradients of outputs, and of what was fetched. With
        `splits` the leaves' gradients may be left for `run_rest`.

        Raises `RuntimeError` where the graph goes on at workers that are no stages.
        """
        collected = _Collected()
        edges, roots = self._roots(given)
        if edges:
            component = self._component(Entry(None, edges))
            if splits and not component.hooked:
                self._weights = split_backward(component, roots, context, collected)
            elif self._known.nbytes < LARGE_BYTES or not run_adding(
                component, roots, context, collected
            ):
                arrived = {None: tuple(roots)}
                del roots
                ComponentRun(component, context, False, collected).run(arrived)  # type: ignore[arg-type]
        return InputGradients(
            [collected.take(each) for each in self._inputs],
            {skip: collected.take(each) for skip, each in self._fetched.items()},
        )

    def _component(self, entry: Entry) -> Component:
        own = [each for each in (*self._inputs, *self._fetched.values()) if each is not None]
        if self._known.are_all(entry.edges, own):
            return Component((entry,), self._known.edges, (), tuple(own), True)
        (component,) = find_components([entry], RECEIVE_NODE)
        _refuse_others(component.receives, own)
        self._known.note(component.leaves)
        return component

    def run_rest(self, context: DistAutogradContext) -> None:
        """Does what was left."""
        if self._weights is not None:
            self._weights.run(context)

    def _roots(self, given: Gradients) -> tuple[tuple[GradientEdge, ...], list[torch.Tensor]]:
        gradients: list[torch.Tensor | None] = [None] * len(self._edges)
        gradients[: self._outputs] = given.outputs
        for number, gradient in given.skips:
            place = self._outputs + number
            before = gradients[place]
            if gradient is not None:
                gradients[place] = gradient if before is None else before + gradient
        edges, roots, devices = [], [], []
        for edge, gradient, device in zip(self._edges, gradients, self._devices, strict=True):
            if edge is not None and gradient is not None:
                edges.append(edge)
                roots.append(gradient)
                devices.append(device)
        if not all(map(is_host, devices)) or not all(map(is_on_host, roots)):
            roots = arrive(roots, devices)  # type: ignore[assignment]
        return tuple(edges), roots


def _refuse_others(receives: Iterable[Node], own: Iterable[Node]) -> None:
    """Raises `RuntimeError` where there are receives that are not our own."""
    for node in frozenset(receives).difference(own):
        raise RuntimeError(
            "what the forward pass got from a call to another worker "
            f"({node.receive.message.worker}) wants a gradient, which a pipeline brings to "
            "its stages only: make what was called a stage, or detach its result"
        )


class _Collected:
    """Takes the gradients that arrive at receives; the sink of a run."""

    def __init__(self) -> None:
        self._gradients: dict[int, torch.Tensor | None] = {}

    def emit(self, receive: Receive, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """See `autograd.stitch.GradientSink`."""
        self._gradients[id(receive)] = gradients[0]

    def take(self, node: Node | None) -> torch.Tensor | None:
        """What has arrived at a receive, if anything."""
        return None if node is None else self._gradients.pop(id(node.receive), None)


def _begin(tensor: torch.Tensor) -> tuple[torch.Tensor, Node]:
    with torch.enable_grad():  # the module may fetch in a block without
        (received,) = stitch_receive(_UNNAMED, [tensor.data])  # an object of its own
    return received, received.grad_fn
