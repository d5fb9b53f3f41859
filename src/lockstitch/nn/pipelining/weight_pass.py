"""A backward pass in two parts: gradients of the inputs first, which others wait for, and those of
the parameters later, in time that would be idle.

    inputs ◄─ n1 ◄─ n2 ◄─ n3 ◄─ gradients        first: runs the *trunk*, from which inputs are
              └─ a   └─ b   └─ c                  reached, and captures what enters n1, n2 and n3
                                                  then: n1 → a, n2 → b, n3 → c, one by one
A node of the trunk may lead to leaves beside the inputs, its own parameters as a rule. In the first
part the engine computes of such a node only what the inputs need; in the second only what its
leaves need, from the gradient that entered it. That is exact where no other node of the trunk leads
to these leaves. Leaves to which several do, and those with hooks, get their gradients in the first
part; so does everything where a node on the way has hooks, which would see a gradient twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch.autograd.graph import GradientEdge

from lockstitch.autograd.stitch import ANCHOR, arriving_at
from lockstitch.torch_internals.autograd import AccumulateGrad, has_node_hooks, run_engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.graph import Component
    from lockstitch.autograd.stitch import GradientSink
    from lockstitch.torch_internals.autograd import Node


class _Branch(NamedTuple):
    """A node of the trunk, where gradients enter it, and the leaves that only it leads to."""

    edges: tuple[GradientEdge, ...]
    leaves: tuple[GradientEdge, ...]


class WeightPass:
    """The second part: branches, each with what has entered it."""

    def __init__(self, branches: list[tuple[_Branch, list[torch.Tensor | None]]]) -> None:
        self._branches = branches

    def run(self, context: DistAutogradContext) -> None:
        """Computes the gradients of all leaves that were left, and adds them to the context's."""
        while self._branches:
            branch, gradients = self._branches.pop()
            there = [
                (edge, gradient)
                for edge, gradient in zip(branch.edges, gradients, strict=True)
                if gradient is not None
            ]
            del gradients
            if there:
                edges, entering = zip(*there, strict=True)
                captured = run_engine(edges, entering, branch.leaves, False)
                context.add_gradients(branch.leaves, captured)


def split_backward(
    component: Component,
    roots: Sequence[torch.Tensor],
    context: DistAutogradContext,
    sink: GradientSink,
) -> WeightPass:
    """Runs the first part of a component's backward pass from `roots`, the gradients at the edges
    of its only entry; returns the second. Gradients of inputs go to `sink`. Leaves of the component
    have no hooks on their nodes (`Component.hooked`)."""
    (entry,) = component.entries
    if not component.receives:  # nobody waits: all of it comes later
        return WeightPass([(_Branch(entry.edges, component.leaves), list(roots))])
    branches = _find_branches(component)
    apart = {leaf.node for branch in branches for leaf in branch.leaves}
    leaves = [leaf for leaf in component.leaves if leaf.node not in apart]
    edges = [edge for branch in branches for edge in branch.edges]
    with arriving_at(sink, component.receives):
        captured = run_engine(entry.edges, roots, [*edges, *leaves, ANCHOR], bool(edges))
    entered, own = captured[: len(edges)], captured[len(edges) : len(edges) + len(leaves)]
    del captured
    context.add_gradients(leaves, own)
    later = [(branch, [entered.pop() for _ in branch.edges][::-1]) for branch in branches[::-1]]
    return WeightPass(later[::-1])


def _find_branches(component: Component) -> list[_Branch]:
    """Those nodes of the trunk that alone lead to some leaves."""
    (entry,) = component.entries
    graph = _Walk(entry.edges, component.receives)
    gates: dict[Node, list[Node | None]] = {}
    receives = frozenset(component.receives)
    for node in graph.trunk:
        for leaf in () if node in receives else graph.leaves_beside(node):
            gates.setdefault(leaf, []).append(node)
    for edge in entry.edges:
        if edge.node not in graph.trunk:
            for leaf in graph.leaves_below(edge.node):
                gates.setdefault(leaf, []).append(None)
    alone: dict[Node, list[Node]] = {}
    for leaf, leading in gates.items():
        if len(leading) == 1 and leading[0] is not None:
            alone.setdefault(leading[0], []).append(leaf)
    return [
        _Branch(
            tuple([GradientEdge(node, number) for number in sorted(graph.entered[node])]),
            tuple([GradientEdge(leaf, 0) for leaf in leaves]),
        )
        for node, leaves in alone.items()
        if not has_node_hooks(node)
    ]


class _Walk:
    """A graph, and which of its nodes are the trunk."""

    def __init__(self, edges: Sequence[GradientEdge], receives: Sequence[Node]) -> None:
        self.entered: dict[Node, set[int]] = {}
        """By which of its inputs gradients enter a node."""
        self.trunk: dict[Node, None] = dict.fromkeys(receives)
        for edge in edges:
            self.entered.setdefault(edge.node, set()).add(edge.output_nr)
        for node in self._children_first([edge.node for edge in edges]):
            for child, number in node.next_functions:
                if child is not None:
                    self.entered.setdefault(child, set()).add(number)
            if any(child in self.trunk for child, _ in node.next_functions):
                self.trunk[node] = None

    @staticmethod
    def _children_first(starts: list[Node]) -> Iterator[Node]:
        seen = set[object]()
        waiting: list[tuple[Node, bool]] = [(node, False) for node in starts]
        while waiting:
            node, are_children_done = waiting.pop()
            if are_children_done:
                yield node
            elif node not in seen:
                seen.add(node)
                waiting.append((node, True))
                waiting.extend(
                    (child, False) for child, _ in node.next_functions if child is not None
                )

    def leaves_beside(self, node: Node) -> Iterator[Node]:
        """The leaves to which a node of the trunk leads without its other nodes."""
        seen = set[object]()
        for child, _ in node.next_functions:
            if child is not None and child not in self.trunk:
                yield from self.leaves_below(child, seen)

    def leaves_below(self, node: Node, seen: set[object] | None = None) -> Iterator[Node]:
        """The leaves to which a node beside the trunk leads."""
        seen = set() if seen is None else seen
        waiting = [node]
        while waiting:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            if type(here) is AccumulateGrad:
                yield here
            else:
                waiting.extend(child for child, _ in here.next_functions if child is not None)
