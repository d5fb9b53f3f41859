"""The tree on which workers meet: everybody once, few neighbours, not deep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rpc.tree import ARITY, Attendance, TreeNode


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


@pytest.mark.parametrize("size", [1, 2, 5, 6, 30])
def test_a_world_is_numbered_by_its_ranks_of_which_each_asks_for_its_neighbours_only(size) -> None:
    infos = [WorkerInfo(f"w{size - rank:02}", rank) for rank in range(size)]
    by_name = {f"{info.id:02}": info.worker for info in infos}
    for rank in range(size):
        asked: list[int] = []

        def info_of(number: int, asked: list[int] = asked) -> WorkerInfo:
            asked.append(number)
            return infos[number]

        here = Attendance.of_world(size, rank, info_of)
        same = TreeNode.of(by_name, f"{rank:02}")
        assert list(here.node.parent.values()) == list(same.parent.values())
        assert list(here.node.children.values()) == list(same.children.values())
        assert all(infos[each.rank].name == name for name, each in here.node.children.items())
        assert here.everybody == f"all {size} ranks"
        assert len(asked) <= ARITY + 1
