"""The walk: which parts of a worker's graph may run on their own.

A backward pass enters a worker's graph at its *entries*: the roots of the loss on one worker, and
everywhere the sends, since a gradient comes back for each tensor that was sent. If two entries
reach the same node, that node must run once, on the sum of both; so they belong together. The walk
unites such entries into *components*, which share nothing but leaves: each may run by itself, as
soon as its own entries are settled. Almost every component has a single entry.

Nothing here communicates, locks or runs a node; the result is a plain value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.autograd.graph import GradientEdge

from lockstitch.autograd.torch_internals import AccumulateGrad, Node, node_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstitch.ids import GlobalId


@dataclass(frozen=True, slots=True)
class Entry:
    """A place where gradients enter: one edge per tensor sent, or per root.

    `message` names the stitch; it is None for the roots of the loss. `aliases` are the private
    nodes above the edges that stand for the sent tensors, and `order` counts the sends of a
    context; only the blocking run needs these two.
    """

    message: GlobalId | None
    edges: tuple[GradientEdge, ...]
    aliases: tuple[Node, ...] = ()
    order: int = 0


@dataclass(frozen=True, slots=True)
class Component:
    """Entries that reach common nodes, the roots first, then sends from the newest to the oldest.

    `leaves` are the edges at which gradients of leaf tensors arrive, `hooked` the positions among
    them of those whose AccumulateGrad node has hooks; `receives` are the nodes that hand gradients
    to other workers. `is_covered` says that every entry starts at nodes which the first entry
    reaches: then the same nodes run whichever of the other entries takes part.
    """

    entries: tuple[Entry, ...]
    leaves: tuple[GradientEdge, ...]
    hooked: tuple[int, ...]
    receives: tuple[Node, ...]
    is_covered: bool


def find_components(
    entries: Sequence[Entry], is_receive: Callable[[Node], bool]
) -> list[Component]:
    """Walks the graph once from `entries` (the roots first, then the newest send first)."""
    return _Walk(entries, is_receive).components()


class _Walk:
    """Depth first from each entry in turn; a node already reached from elsewhere unites the two."""

    def __init__(self, entries: Sequence[Entry], is_receive: Callable[[Node], bool]) -> None:
        self._entries = entries
        self._is_receive = is_receive
        self._owner: dict[Node, int] = {}
        self._parent = list(range(len(entries)))
        self._leaves: list[dict[Node, None]] = [{} for _ in entries]
        self._hooked: set[Node] = set()
        self._receives: list[list[Node]] = [[] for _ in entries]
        for index in range(len(entries)):
            self._enter(index)

    def _enter(self, index: int) -> None:
        owner, is_receive = self._owner, self._is_receive
        leaves = self._leaves[index]
        waiting = [edge.node for edge in self._entries[index].edges]
        while waiting:
            node = waiting.pop()
            if node in leaves:
                continue
            reached_from = owner.get(node)
            if reached_from is not None:
                if reached_from != index:
                    self._unite(reached_from, index)
                continue
            if type(node) is AccumulateGrad:
                leaves[node] = None
                # A shared leaf does not unite, since gradients can be added in any order; but a
                # hook must see their sum, and only once.
                if node_hooks(node):
                    self._hooked.add(node)
                    owner[node] = index
                elif node.variable._backward_hooks:  # type: ignore[attr-defined]
                    owner[node] = index
                continue
            owner[node] = index
            if is_receive(node):
                self._receives[index].append(node)
                continue
            for following, _ in node.next_functions:
                if following is not None:
                    waiting.append(following)

    def _find(self, index: int) -> int:
        parent = self._parent
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def _unite(self, one: int, other: int) -> None:
        first, second = sorted((self._find(one), self._find(other)))
        self._parent[second] = first

    def components(self) -> list[Component]:
        members: dict[int, list[int]] = {}
        for index in range(len(self._entries)):
            members.setdefault(self._find(index), []).append(index)
        return [self._component(group) for group in members.values()]

    def _component(self, group: list[int]) -> Component:
        leaves: dict[Node, None] = {}
        receives: list[Node] = []
        for index in group:
            leaves.update(self._leaves[index])
            receives.extend(self._receives[index])
        return Component(
            entries=tuple(self._entries[index] for index in group),
            leaves=tuple(GradientEdge(leaf, 0) for leaf in leaves),
            hooked=tuple(at for at, leaf in enumerate(leaves) if leaf in self._hooked)
            if self._hooked
            else (),
            receives=tuple(receives),
            is_covered=all(self._starts_within(index, group[0]) for index in group[1:]),
        )

    def _starts_within(self, index: int, first: int) -> bool:
        # No earlier entry's walk can have reached a node that `first` reaches too, or it would be
        # first itself; hence what `first` owns is all that it reaches. What nobody owns are leaves
        # without hooks: nothing runs there, whether a gradient comes or not.
        owner = self._owner
        return all(owner.get(edge.node, first) == first for edge in self._entries[index].edges)


def interior_nodes(entries: Sequence[Entry]) -> Iterator[Node]:
    """Every node that `entries` reach, except leaves."""
    waiting = [edge.node for entry in entries for edge in entry.edges]
    reached = set()
    while waiting:
        node = waiting.pop()
        if node in reached or type(node) is AccumulateGrad:
            continue
        reached.add(node)
        yield node
        waiting.extend(following for following, _ in node.next_functions if following is not None)
