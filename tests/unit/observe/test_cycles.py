"""Circles in a graph, compared with what trying all paths finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.observe.cycles import components, find_cycles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NODES = "abcdef"
GRAPHS = st.dictionaries(
    st.sampled_from(NODES), st.lists(st.sampled_from(NODES + "xy"), max_size=4)
)


def reachable(start: str, edges: Mapping[str, Sequence[str]]) -> set[str]:
    """By one step or more."""
    found: set[str] = set()
    left = list(edges.get(start, ()))
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += edges.get(node, ())
    return found


@given(GRAPHS)
def test_components_are_the_sets_of_nodes_that_reach_each_other(
    edges: dict[str, list[str]],
) -> None:
    reach = {node: reachable(node, edges) for node in NODES}
    expected = {
        frozenset(other for other in NODES if other in reach[node] and node in reach[other])
        for node in NODES
        if node in reach[node]
    }
    found = components(edges)
    assert {frozenset(each) for each in found} == expected
    assert len(found) == len(expected)


@given(GRAPHS)
def test_a_cycle_of_each_component_is_a_cycle_and_none_is_shorter(
    edges: dict[str, list[str]],
) -> None:
    cycles = find_cycles(edges)
    assert len(cycles) == len(components(edges))
    for cycle, component in zip(cycles, components(edges), strict=True):
        assert set(cycle) <= set(component)
        assert len(set(cycle)) == len(cycle)
        for node, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert following in edges[node]
        assert len(cycle) == min(shortest_back_to(node, edges) for node in component)


def shortest_back_to(start: str, edges: Mapping[str, Sequence[str]]) -> int:
    front, length = set(edges.get(start, ())), 1
    while start not in front:
        front = {target for node in front for target in edges.get(node, ())}
        length += 1
    return length


def test_a_long_chain_needs_no_recursion() -> None:
    edges = {str(number): [str(number + 1)] for number in range(5000)}
    assert find_cycles(edges) == []
    edges["5000"] = ["0"]
    (cycle,) = components(edges)
    assert len(cycle) == 5001
