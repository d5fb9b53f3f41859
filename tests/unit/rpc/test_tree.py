"""The tree on which workers meet: everybody once, few neighbours, not deep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.ids import WorkerId
from lockstitch.rpc.tree import ARITY, TreeNode


def members(names) -> dict[str, WorkerId]:
    return {name: WorkerId(rank, 0) for rank, name in enumerate(names)}


@given(st.sets(st.text("abcdef", min_size=1), min_size=1, max_size=200))
def test_the_tree_holds_everybody_once_and_is_shallow(names) -> None:
    group = members(names)
    branches = {name: TreeNode.of(group, name) for name in names}
    leader = min(names)
    assert [name for name in names if not branches[name].parent] == [leader]

    depth, level, seen = 0, [leader], {leader}
    while below := [child for name in level for child in branches[name].children]:
        for name in level:
            for child, worker in branches[name].children.items():
                assert branches[child].parent == {name: group[name]}
                assert worker == group[child]
        assert not seen & set(below)
        seen.update(below)
        level, depth = below, depth + 1
    assert seen == names
    assert all(len(node.children) <= ARITY for node in branches.values())
    assert (ARITY**depth - 1) // (ARITY - 1) < len(names) or depth == 0


def test_five_workers_are_a_star() -> None:
    group = members("edcba")
    assert set(TreeNode.of(group, "a").children) == set("bcde")
    assert all(not TreeNode.of(group, name).children for name in "bcde")


def test_who_does_not_belong_has_no_place() -> None:
    with pytest.raises(ValueError, match=r"'x' is not among the workers \['a', 'b'\]"):
        TreeNode.of(members("ab"), "x")
