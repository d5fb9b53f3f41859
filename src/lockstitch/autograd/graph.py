"""The walk: which parts of a worker's graph may run on their own.

A backward pass enters a worker's graph at its *entries*: the roots of the loss on one worker, and
everywhere the sends, since a gradient comes back for each tensor that was sent. If two entries
reach the same node, that node must run once, on the sum of both; so they belong together. The walk
unites such entries into *components*, which share nothing but leaves: each may run by itself, as
soon as its own entries are settled. Almost every component has a single entry.

Nothing here communicates, locks or runs a node; the result is a plain value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from torch.autograd.graph import GradientEdge

from lockstitch.torch_internals.autograd import AccumulateGrad, Node, has_node_hooks, tensor_hooks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

    from lockstitch.ids import GlobalId

Gradients = tuple["torch.Tensor | None", ...]
"""What arrives at an entry, or at a receive: one for each tensor of the stitch, None for none."""

_MOST_UNNOTED: Final = 1_000
_FEW_UNNOTED: Final = 15


class Entry(NamedTuple):
    """A place where gradients enter: one edge per tensor sent, or per root.

    `message` names the stitch; it is None for the roots of the loss. `aliases` are the private
    nodes above the edges that stand for the sent tensors, and `order` counts the sends of a
    context; only the blocking run needs these two. `devices` are those of the tensors; None: they
    are all on the host.
    """

    message: GlobalId | None
    edges: tuple[GradientEdge, ...]
    aliases: tuple[Node, ...] = ()
    order: int = 0
    devices: tuple[torch.device, ...] | None = None


class Component(NamedTuple):
    """Entries that reach common nodes, the roots first, then sends from the newest to the oldest.

    `leaves` are the edges at which gradients of leaf tensors arrive, `hooked` the positions among
    them of those whose AccumulateGrad node has hooks; `receives` are the nodes that hand gradients
    to other workers. `is_covered` says that every entry starts at nodes which the first entry
    reaches: then the same nodes run whichever of the other entries takes part. `size` says
    about how many nodes there are, a thousand more at most.
    """

    entries: tuple[Entry, ...]
    leaves: tuple[GradientEdge, ...]
    hooked: tuple[int, ...]
    receives: tuple[Node, ...]
    is_covered: bool
    size: int = 0


def find_components(entries: Sequence[Entry], receive_type: type) -> list[Component]:
    """Walks the graph once from `entries` (the roots first, then the newest send first). Nodes of
    exactly `receive_type` are receives."""
    walk = _Walk(receive_type, is_alone=len(entries) == 1)
    areas = [walk.enter(index, entry) for index, entry in enumerate(entries)]
    if not walk.united:
        return [area.component((entry,), True) for entry, area in zip(entries, areas, strict=True)]
    return [walk.component(entries, areas, group) for group in walk.groups(len(entries))]


def join(components: Sequence[Component]) -> Component:
    """Several components as one, of whose entries none takes part in vain: it runs in one go."""
    leaves = components[0].leaves
    if any(each.leaves is not leaves for each in components):  # those of a selection are the same
        leaves = tuple(dict.fromkeys([leaf for each in components for leaf in each.leaves]))
    hooked = {each.leaves[place] for each in components for place in each.hooked}
    entries = [entry for each in components for entry in each.entries]
    entries.sort(key=lambda entry: (entry.message is not None, -entry.order))
    return Component(
        tuple(entries),
        leaves,
        tuple([place for place, leaf in enumerate(leaves) if leaf in hooked]),
        tuple([receive for each in components for receive in each.receives]),
        False,
        sum([each.size for each in components]),
    )


class _Area:
    """The part of the graph that one entry reached first."""

    __slots__ = ("hooked", "leaves", "receives", "size")

    def __init__(self) -> None:
        self.leaves: dict[Node, None] = {}
        self.hooked: set[Node] = set()
        self.receives: list[Node] = []
        self.size = 0

    def component(self, entries: tuple[Entry, ...], is_covered: bool) -> Component:
        """Returns what these entries, which reached it, form."""
        leaves: tuple[GradientEdge, ...] = ()
        hooked: tuple[int, ...] = ()
        if self.leaves:
            leaves = tuple([GradientEdge(leaf, 0) for leaf in self.leaves])
        if self.hooked:
            hooked = tuple([at for at, leaf in enumerate(self.leaves) if leaf in self.hooked])
        return Component(entries, leaves, hooked, tuple(self.receives), is_covered, self.size)

    def absorb(self, other: _Area) -> None:
        self.leaves.update(other.leaves)
        self.hooked |= other.hooked
        self.receives += other.receives
        self.size += other.size


class _Walk:
    """Depth first from each entry in turn; a node already reached from elsewhere unites the two."""

    def __init__(self, receive_type: type, is_alone: bool) -> None:
        self._receive_type = receive_type
        # Where a single entry walks, nobody needs to know who reached what. Then so many nodes of a
        # chain may stay unnoted: at worst they are walked again.
        self._most_unnoted = _MOST_UNNOTED if is_alone else 0
        self._again = 0
        self._owner: dict[Node, int] = {}
        self.united: dict[int, int] = {}
        """Union-find over entries: index → an earlier index of the same component."""

    def enter(self, index: int, entry: Entry) -> _Area:
        """Walks from one entry."""
        owner, area = self._owner, _Area()
        leaves, noted = area.leaves, len(owner)
        waiting = [edge.node for edge in entry.edges]
        while waiting:
            node: Node | None = waiting.pop()
            above: Node | None = None
            most_unnoted = self._most_unnoted
            unnoted = 0
            while node is not None:  # a chain; nothing in a pass is done more often than this
                if node in owner:
                    self._meet(owner[node], index, unnoted)
                    break
                ahead = node.next_functions
                if len(ahead) == 1 or (len(ahead) == 2 and ahead[1][0] is None):
                    following = ahead[0][0]
                elif ahead:
                    following = None
                    for each, _ in ahead:
                        if following is None:
                            following = each
                        elif each is not None:
                            waiting.append(each)
                    owner[node] = index
                    area.size += unnoted
                    unnoted = -1
                elif node in leaves:
                    self._walked_again(unnoted)
                    break
                else:
                    self._end(above, node, index, area)
                    break
                if unnoted < most_unnoted:
                    unnoted += 1
                else:
                    owner[node] = index
                    area.size += unnoted
                    unnoted = 0
                above, node = node, following
            area.size += unnoted
        area.size += len(owner) - noted
        return area

    def _meet(self, reached_from: int, index: int, steps: int) -> None:
        """An entry came to a node that was noted."""
        if reached_from != index:
            self._unite(reached_from, index)
        else:
            self._walked_again(steps)

    def _walked_again(self, steps: int) -> None:
        """At most so many of the last nodes had been walked before."""
        self._again += steps
        if self._again > _MOST_UNNOTED:
            self._most_unnoted = min(self._most_unnoted, _FEW_UNNOTED)

    def _end(self, above: Node | None, node: Node, index: int, area: _Area) -> None:
        """An entry came, from the node `above`, to one from which nothing leads on."""
        if type(above) is self._receive_type:  # and `node` is the anchor of all receives
            self._owner[above] = index
            area.receives.append(above)
            return
        kind: type = type(node)
        if kind is not AccumulateGrad:
            self._owner[node] = index
            return
        # A shared leaf does not unite, since gradients can be added in any order; but a hook must
        # see their sum, and only once.
        area.leaves[node] = None
        if has_node_hooks(node):
            area.hooked.add(node)
            self._owner[node] = index
        elif tensor_hooks(node.variable):
            self._owner[node] = index

    def _find(self, index: int) -> int:
        united = self.united
        while index in united:
            above = united[index]
            united[index] = united.get(above, above)  # halves the way for the next search
            index = above
        return index

    def _unite(self, one: int, other: int) -> None:
        first, second = self._find(one), self._find(other)
        if first != second:
            self.united[max(first, second)] = min(first, second)

    def groups(self, count: int) -> Iterable[list[int]]:
        """The entries of each component, by their indices."""
        members: dict[int, list[int]] = {}
        for index in range(count):
            members.setdefault(self._find(index), []).append(index)
        return members.values()

    def component(
        self, entries: Sequence[Entry], areas: list[_Area], group: list[int]
    ) -> Component:
        """Puts the areas of a group together."""
        first, *others = group
        area = areas[first]
        for index in others:
            area.absorb(areas[index])
        return area.component(
            tuple([entries[index] for index in group]),
            all(self._starts_within(entries[index], first) for index in others),
        )

    def _starts_within(self, entry: Entry, first: int) -> bool:
        # No earlier entry's walk can have reached a node that `first` reaches too, or it would be
        # first itself; hence what `first` owns is all that it reaches. What nobody owns are leaves
        # without hooks: nothing runs there, whether a gradient comes or not.
        owner = self._owner
        return all(owner.get(edge.node, first) == first for edge in entry.edges)


def leaves_below(entry: Entry) -> Iterator[torch.Tensor]:
    """Every leaf that `entry` reaches."""
    waiting = [edge.node for edge in entry.edges]
    reached = set()
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            if type(node) is AccumulateGrad:
                yield node.variable  # type: ignore[attr-defined]
            waiting.extend(
                following for following, _ in node.next_functions if following is not None
            )


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
