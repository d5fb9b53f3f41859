"""How a pass of `grad` runs a component: as far as it leads to chosen tensors, and no further.

Such a pass runs as any other, on components that are *narrowed*: instead of all leaves, its engine
has the chosen tensors for inputs, and of the receives those that lead on to chosen tensors
elsewhere. So only nodes on the way to a chosen tensor run, as with `torch.autograd.grad`. Which
receives lead on is known when it has been asked who takes part (`discovery`), which such a pass
does before anything else; one in fast mode does not ask, and follows all of them.

The engine stops at the edges of these receives, and what it has found there is sent when it is
done. Where what is sent may come back to the same component, it must be sent in the middle of the
run: then the receives run, and those that lead nowhere run in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch.autograd.graph import GradientEdge

from lockstitch.autograd.graph import interior_nodes
from lockstitch.autograd.stitch import RECEIVE_NODE
from lockstitch.torch_internals.autograd import OWN_NODES, input_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lockstitch.autograd.discovery import Parts
    from lockstitch.autograd.graph import Component, Entry
    from lockstitch.autograd.selection import Selection
    from lockstitch.autograd.stitch import Receive
    from lockstitch.torch_internals.autograd import Node


class End(NamedTuple):
    """A receive that leads on, with the edges at which the gradients of its tensors arrive: `edges`
    by the positions of those that are wanted, of `size`."""

    receive: Receive
    size: int
    edges: dict[int, GradientEdge]


def narrowed(component: Component, selection: Selection, wanted: Parts | None) -> Component:
    """The component with the chosen tensors for leaves, and those of its receives that are wanted;
    None: all are."""
    receives = component.receives
    if wanted is not None:
        receives = tuple([node for node in receives if node.receive.message in wanted])
    return component._replace(leaves=selection.edges, hooked=(), receives=receives)


def find_ends(component: Component, wanted: Parts) -> tuple[End, ...] | None:
    """Walks a narrowed component for the edges at its receives. None where one has no edge of its
    own, as complex tensors of some sparse layouts have not."""
    ends = {node: End(node.receive, len(input_metadata(node)), {}) for node in component.receives}
    for edge in _edges_of(component.entries):
        place = _place_at_receive(edge)
        if place is not None and place[0] in ends:
            node, index = place
            if index in wanted[node.receive.message]:
                ends[node].edges.setdefault(index, edge)
    found = tuple(ends.values())
    are_all = all(end.edges.keys() == wanted[end.receive.message] for end in found)
    return found if are_all else None


def _edges_of(entries: Sequence[Entry]) -> Iterator[GradientEdge]:
    for entry in entries:
        yield from entry.edges
    for node in interior_nodes(entries):
        yield GradientEdge(node, 0)
        for following, index in node.next_functions:
            if following is not None:
                yield GradientEdge(following, index)


def _place_at_receive(edge: GradientEdge) -> tuple[Node, int] | None:
    """The receive, and the position of its tensor, whose gradient arrives at this edge; None where
    it is another's."""
    node: Node = edge.node
    if type(node) is RECEIVE_NODE:
        # Of several tensors, each has a node of its own above, at which its hooks are.
        return (node, edge.output_nr) if len(input_metadata(node)) == 1 else None
    if type(node) in OWN_NODES:
        below, index = node.next_functions[0]
        if type(below) is RECEIVE_NODE and len(input_metadata(below)) > 1:
            return below, index
    return None
