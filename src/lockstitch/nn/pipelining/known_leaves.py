"""The leaves that the graphs of one stage have come to so far, in all its micro-batches.

Where a backward pass ends is found by a walk through its graph, and whoever makes the graph may
make another one each time. But nearly always it ends in leaves that were found before; that takes a
third of the walk that finds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.torch_internals.autograd import hook_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from torch.autograd.graph import GradientEdge

    from lockstitch.torch_internals.autograd import Node


class KnownLeaves:
    """See the module. `edges` are where their gradients arrive, `nbytes` how large these are. As
    long as they are here their nodes live, which else would die with each graph."""

    def __init__(self) -> None:
        self.edges: tuple[GradientEdge, ...] = ()
        self.nbytes = 0
        self._nodes: set[Node] = set()
        self._hooks: list[dict[int, object]] = []

    def note(self, edges: Iterable[GradientEdge]) -> None:
        """A graph ends in these."""
        fresh = [edge for edge in edges if edge.node not in self._nodes]
        self.edges += tuple(fresh)
        self._nodes.update([edge.node for edge in fresh])
        for edge in fresh:
            self._hooks += hook_tables(edge.node)
            variable: torch.Tensor = edge.node.variable  # type: ignore[attr-defined]
            self.nbytes += variable.numel() * variable.element_size()

    def are_all(self, edges: Sequence[GradientEdge], receives: Iterable[Node]) -> bool:
        """Whether a graph that begins at `edges` ends in leaves that are known, and in `receives`,
        and nowhere else, and none of the known ones has hooks."""
        if not self._nodes or any(self._hooks):
            return False
        passed = {None, *self._nodes, *receives}
        waiting: list[tuple[Any, int]] = [(edge.node, 0) for edge in edges]
        while waiting:
            node, _ = waiting.pop()
            while node not in passed:
                passed.add(node)
                ahead = node.next_functions
                if len(ahead) == 1:
                    node = ahead[0][0]
                elif ahead:
                    waiting.extend(ahead)
                    break
                else:
                    return False
        return True
