"""A barrier is ready when a subtree has come, settled when the leader has announced the result, and
over when one of those awaited is dead or it was called off."""

from __future__ import annotations

import pytest

from lockstitch.errors import PeerDiedError, RpcError
from lockstitch.ids import WorkerId
from lockstitch.rpc.barriers import Barriers
from lockstitch.rpc.tree import Attendance

MEMBERS = {"a": WorkerId(0, 0), "b": WorkerId(1, 0), "c": WorkerId(2, 0)}
# In the order of their names: w00 leads, w01 … w04 are below it, w05 … w08 are below w01.
MANY = {f"w{rank:02}": WorkerId(rank, 0) for rank in range(9)}


def barriers_of(name: str) -> Barriers:
    return Barriers(name, "lunch")


def begin(barriers: Barriers, members: dict[str, WorkerId]) -> str:
    return barriers.begin(Attendance.of(members, barriers._name))


def test_the_leader_waits_for_all_and_keeps_what_each_brought() -> None:
    leader = barriers_of("a")
    barrier_id = begin(leader, MEMBERS)
    leader.bring(barrier_id, "a", 1)
    leader.bring(barrier_id, "c", 3)
    assert leader.get(barrier_id).missing == ["b"]
    assert not leader.get(barrier_id).ready.is_set()
    leader.bring(barrier_id, "b", 2)
    assert leader.get(barrier_id).ready.is_set()
    assert leader.get(barrier_id).brought == {"a": 1, "b": 2, "c": 3}


def test_who_leads_a_subtree_waits_for_it_and_then_for_the_one_above() -> None:
    middle = barriers_of("w01")
    barrier_id = begin(middle, MANY)
    barrier = middle.get(barrier_id)
    assert barrier.missing == ["w05", "w06", "w07", "w08"]
    for name in ("w01", "w05", "w06", "w07", "w08"):
        assert not barrier.ready.is_set()
        middle.bring(barrier_id, name, 1)
    assert barrier.ready.is_set()
    assert barrier.missing == ["w00"]
    assert barrier.neighbours_above == [MANY["w00"]]
    middle.announce(barrier_id, 9)
    assert barrier.settled.is_set()
    assert barrier.result == 9
    assert barrier.missing == []


def test_the_leader_learns_who_is_missing_below_those_who_have_come() -> None:
    leader = barriers_of("w00")
    barrier_id = begin(leader, MANY)
    leader.bring(barrier_id, "w04", 1)
    leader.note_missing(barrier_id, MANY["w01"], ["w06", "w08"])
    assert leader.get(barrier_id).missing == ["w02", "w03", "w06", "w08"]
    leader.note_missing("lunch of strangers#0", MANY["w01"], ["w05"])


def test_barriers_tell_whom_they_wait_for() -> None:
    leader = barriers_of("a")
    barrier_id = begin(leader, MEMBERS)
    leader.bring(barrier_id, "a", 1)
    assert leader.waiting() == [["b", "c"]]
    leader.end(barrier_id)
    assert leader.waiting() == []


def test_others_may_come_before_the_leader() -> None:
    name = begin(barriers_of("b"), MEMBERS)
    leader = barriers_of("a")
    leader.bring(name, "b", 2)
    leader.bring(name, "c", 3)
    assert begin(leader, MEMBERS) == name
    leader.bring(name, "a", 1)
    assert leader.get(name).ready.is_set()


def test_a_follower_waits_for_the_leaders_announcement() -> None:
    follower = barriers_of("b")
    barrier_id = begin(follower, MEMBERS)
    follower.bring(barrier_id, "b", 2)
    assert follower.get(barrier_id).missing == ["a"]
    follower.announce(barrier_id, {"a": 1, "b": 2, "c": 3})
    assert follower.get(barrier_id).settled.is_set()


def test_who_waits_no_longer_ignores_what_comes() -> None:
    follower = barriers_of("b")
    barrier_id = begin(follower, MEMBERS)
    follower.end(barrier_id)
    follower.announce(barrier_id, {"a": 1, "b": 2, "c": 3})
    follower.bring(barrier_id, "b", 2)
    follower.call_off(barrier_id, RpcError("no"))
    assert follower.waiting() == []
    assert follower._open == {}


def test_a_barrier_that_is_called_off_ends_the_waiting() -> None:
    follower, error = barriers_of("b"), RpcError("no")
    barrier_id = begin(follower, MEMBERS)
    follower.call_off(barrier_id, error)
    follower.call_off(barrier_id, RpcError("once more"))
    assert follower.get(barrier_id).settled.is_set()
    assert follower.get(barrier_id).failure is error
    follower.end(barrier_id)
    follower.call_off(barrier_id, error)


def test_whoever_comes_late_hears_that_the_barrier_was_called_off() -> None:
    follower, error = barriers_of("b"), RpcError("no")
    barrier_id = begin(barriers_of("a"), MEMBERS)
    follower.call_off(barrier_id, error)
    assert begin(follower, MEMBERS) == barrier_id
    assert follower.get(barrier_id).failure is error
    follower.end(barrier_id)
    assert follower.get(begin(follower, MEMBERS)).failure is None


def test_what_is_called_off_elsewhere_is_no_barrier_of_this_purpose() -> None:
    follower = barriers_of("b")
    follower.call_off(begin(Barriers("a", "dinner"), MEMBERS), RpcError("no"))
    assert follower._open == {}


def test_nobody_comes_twice() -> None:
    leader = barriers_of("a")
    barrier_id = begin(leader, MEMBERS)
    leader.bring(barrier_id, "b", 2)
    with pytest.raises(ValueError, match="b came twice"):
        leader.bring(barrier_id, "b", 2)


def test_barriers_of_the_same_workers_are_counted_alike_everywhere() -> None:
    leader, follower = barriers_of("a"), barriers_of("b")
    names = [begin(leader, MEMBERS), begin(leader, MEMBERS)]
    assert names == [begin(follower, MEMBERS), begin(follower, MEMBERS)]
    other_purpose = begin(Barriers("a", "dinner"), MEMBERS)
    assert len({*names, begin(leader, {"a": MEMBERS["a"]}), other_purpose}) == 4


def test_the_id_of_a_barrier_does_not_grow_with_its_members() -> None:
    many = {f"w{rank}": WorkerId(rank, 0) for rank in range(1000)}
    assert len(begin(barriers_of("w0"), many)) < 50


def test_only_members_meet() -> None:
    with pytest.raises(ValueError, match="'x' is not among the workers"):
        begin(barriers_of("x"), MEMBERS)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("name", "dead"), [("a", "c"), ("b", "a")])
def test_the_death_of_one_who_is_awaited_ends_the_waiting(name, dead, before) -> None:
    barriers, error = barriers_of(name), PeerDiedError(dead)
    if before:
        barriers.lose(MEMBERS[dead], error)
    barrier_id = begin(barriers, MEMBERS)
    barriers.bring(barrier_id, name, 1)
    if not before:
        barriers.lose(MEMBERS[dead], error)
    assert barriers.get(barrier_id).settled.is_set()
    assert barriers.get(barrier_id).failure is error


def test_a_parent_that_dies_while_its_subtree_gathers_is_noticed_when_all_have_come() -> None:
    middle, error = barriers_of("w01"), PeerDiedError("w00")
    barrier_id = begin(middle, MANY)
    middle.lose(MANY["w00"], error)
    for name in ("w01", "w05", "w06", "w07", "w08"):
        middle.bring(barrier_id, name, 1)
    assert middle.get(barrier_id).failure is error


def test_the_death_of_one_who_has_come_or_is_not_awaited_changes_nothing() -> None:
    leader, follower = barriers_of("a"), barriers_of("b")
    barrier_id = begin(leader, MEMBERS)
    begin(follower, MEMBERS)
    leader.bring(barrier_id, "c", 3)
    leader.lose(MEMBERS["c"], PeerDiedError("c"))
    follower.lose(MEMBERS["c"], PeerDiedError("c"))
    assert not leader.get(barrier_id).settled.is_set()
    assert not follower.get(barrier_id).settled.is_set()


def test_a_later_life_of_the_dead_is_awaited_again() -> None:
    leader = barriers_of("a")
    leader.lose(WorkerId(1, 0), PeerDiedError("b"))
    barrier_id = begin(leader, {**MEMBERS, "b": WorkerId(1, 1)})
    assert leader.get(barrier_id).failure is None


def test_who_comes_again_hears_the_result_again() -> None:
    """Its word or the answer may have been lost."""
    leader = barriers_of("a")
    barrier_id = begin(leader, MEMBERS)
    for name in ("a", "b", "b", "c"):
        leader.bring(barrier_id, name, 1, may_repeat=True)
        assert leader.result_of(barrier_id) == []
    leader.announce(barrier_id, 3)
    assert leader.result_of(barrier_id) == [3]
    leader.end(barrier_id)
    assert leader.result_of(barrier_id) == [3]
    following = begin(leader, MEMBERS)
    assert leader.result_of(following) == []
    assert leader.result_of(barrier_id) == [3]
