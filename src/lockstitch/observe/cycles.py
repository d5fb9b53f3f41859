"""Cycles in a graph whose edges say who waits for whom. No I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Node = TypeVar("Node", bound="str | tuple[str, str, int]")
"""Of a kind that has an order, for results that do not depend on it."""


def components(edges: Mapping[Node, Sequence[Node]]) -> list[list[Node]]:
    """Returns the strongly connected components that have a cycle: sets of nodes each of which
    leads to each other. Tarjan's algorithm, without recursion, since a chain may be long."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found: list[list[Node]] = []
    for start in sorted(edges):
        if start in index:
            continue
        work = [(start, iter(sorted(edges[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, following = work[-1]
            target = next(following, None)
            if target is None:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == index[node]:
                    component = _pop_to(node, stack, on_stack)
                    if len(component) > 1 or node in edges.get(node, ()):
                        found.append(sorted(component))
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                on_stack.add(target)
                work.append((target, iter(sorted(edges.get(target, ())))))
            elif target in on_stack:
                low[node] = min(low[node], index[target])
    return sorted(found)


def _pop_to(node: Node, stack: list[Node], on_stack: set[Node]) -> list[Node]:
    component = []
    while True:
        top = stack.pop()
        on_stack.discard(top)
        component.append(top)
        if top == node:
            return component


def cycle_in(component: Sequence[Node], edges: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Returns a shortest cycle within a strongly connected component, from the first node on that
    has one so short; each node is followed by one that it has an edge to, the last by the first."""
    members = set(component)
    least = 1 if any(node in edges.get(node, ()) for node in component) else 2
    best: list[Node] = []
    for start in sorted(component):
        cycle = _shortest_from(start, members, edges)
        if cycle and (not best or len(cycle) < len(best)):
            best = cycle
        if len(best) == least:
            break
    return best


def _shortest_from(
    start: Node, members: set[Node], edges: Mapping[Node, Sequence[Node]]
) -> list[Node]:
    came_from: dict[Node, Node] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for target in sorted(edges.get(node, ())):
            if target == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if target in members and target not in came_from:
                came_from[target] = node
                queue.append(target)
    return []


def find_cycles(edges: Mapping[Node, Sequence[Node]]) -> list[list[Node]]:
    """Returns a shortest cycle of each strongly connected component that has any."""
    return [cycle_in(component, edges) for component in components(edges)]
