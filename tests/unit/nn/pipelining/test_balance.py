"""Costs are cut into contiguous parts of which none could be cheaper."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, strategies

from lockstitch.nn.pipelining.balance import partition

costs = strategies.lists(strategies.integers(0, 20).map(float), min_size=1, max_size=9)


@given(costs, strategies.data())
def test_no_other_cut_has_a_cheaper_most_expensive_part(values, data):
    parts = data.draw(strategies.integers(1, len(values)))
    found = partition(values, parts)
    assert [at for part in found for at in part] == list(range(len(values)))
    assert len(found) == parts
    assert all(found)
    best = min(
        max(sum(values[begin:end]) for begin, end in pairwise([0, *cuts, len(values)]))
        for cuts in combinations(range(1, len(values)), parts - 1)
    )
    assert max(sum(values[at] for at in part) for part in found) == best


def test_more_parts_than_items_are_refused():
    with pytest.raises(ValueError, match="2 items cannot be cut into 3"):
        partition([1.0, 2.0], 3)
