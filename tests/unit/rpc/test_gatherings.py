"""A gathering settles when all have come, or when one of those awaited is dead."""

from __future__ import annotations

import pytest

from lockstitch.errors import PeerDiedError
from lockstitch.ids import WorkerId
from lockstitch.rpc.gatherings import Gatherings

MEMBERS = {"a": WorkerId(0, 0), "b": WorkerId(1, 0), "c": WorkerId(2, 0)}


def test_the_leader_waits_for_all_and_keeps_what_each_brought() -> None:
    leader = Gatherings("a")
    meeting = leader.begin(MEMBERS)
    leader.bring(meeting, "a", 1)
    leader.bring(meeting, "c", 3)
    assert leader.get(meeting).missing == ["b"]
    assert not leader.get(meeting).settled.is_set()
    leader.bring(meeting, "b", 2)
    assert leader.get(meeting).settled.is_set()
    assert leader.get(meeting).objects == {"a": 1, "b": 2, "c": 3}


def test_others_may_come_before_the_leader() -> None:
    name = Gatherings("b").begin(MEMBERS)
    leader = Gatherings("a")
    leader.bring(name, "b", 2)
    leader.bring(name, "c", 3)
    assert leader.begin(MEMBERS) == name
    leader.bring(name, "a", 1)
    assert leader.get(name).settled.is_set()


def test_a_follower_waits_for_the_leaders_announcement() -> None:
    follower = Gatherings("b")
    meeting = follower.begin(MEMBERS)
    assert follower.get(meeting).missing == ["a"]
    follower.announce(meeting, {"a": 1, "b": 2, "c": 3})
    assert follower.get(meeting).settled.is_set()


def test_who_waits_no_longer_ignores_the_announcement() -> None:
    follower = Gatherings("b")
    meeting = follower.begin(MEMBERS)
    follower.end(meeting)
    follower.announce(meeting, {"a": 1, "b": 2, "c": 3})


def test_nobody_comes_twice() -> None:
    leader = Gatherings("a")
    meeting = leader.begin(MEMBERS)
    leader.bring(meeting, "b", 2)
    with pytest.raises(ValueError, match="b came twice"):
        leader.bring(meeting, "b", 2)


def test_meetings_of_the_same_workers_are_counted_alike_everywhere() -> None:
    leader, follower = Gatherings("a"), Gatherings("b")
    names = [leader.begin(MEMBERS), leader.begin(MEMBERS)]
    assert names == [follower.begin(MEMBERS), follower.begin(MEMBERS)]
    assert len({*names, leader.begin({"a": MEMBERS["a"]})}) == 3


def test_only_members_meet() -> None:
    with pytest.raises(ValueError, match="'x' is not among the workers"):
        Gatherings("x").begin(MEMBERS)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("name", "dead"), [("a", "c"), ("b", "a")])
def test_the_death_of_one_who_is_awaited_ends_the_waiting(name, dead, before) -> None:
    gatherings, error = Gatherings(name), PeerDiedError(dead)
    if before:
        gatherings.lose(MEMBERS[dead], error)
    meeting = gatherings.begin(MEMBERS)
    if not before:
        gatherings.lose(MEMBERS[dead], error)
    assert gatherings.get(meeting).settled.is_set()
    assert gatherings.get(meeting).failure is error


def test_the_death_of_one_who_has_come_or_is_not_awaited_changes_nothing() -> None:
    leader, follower = Gatherings("a"), Gatherings("b")
    meeting = leader.begin(MEMBERS)
    follower.begin(MEMBERS)
    leader.bring(meeting, "c", 3)
    leader.lose(MEMBERS["c"], PeerDiedError("c"))
    follower.lose(MEMBERS["c"], PeerDiedError("c"))
    assert not leader.get(meeting).settled.is_set()
    assert not follower.get(meeting).settled.is_set()


def test_a_later_life_of_the_dead_is_awaited_again() -> None:
    leader = Gatherings("a")
    leader.lose(WorkerId(1, 0), PeerDiedError("b"))
    meeting = leader.begin({**MEMBERS, "b": WorkerId(1, 1)})
    assert leader.get(meeting).failure is None
