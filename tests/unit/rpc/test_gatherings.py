"""A gathering is ready when a branch has come, settled when the leader has spoken, and over when
one of those awaited is dead or it was called off."""

from __future__ import annotations

import pytest

from lockstitch.errors import PeerDiedError, RpcError
from lockstitch.ids import WorkerId
from lockstitch.rpc.gatherings import Gatherings

MEMBERS = {"a": WorkerId(0, 0), "b": WorkerId(1, 0), "c": WorkerId(2, 0)}
# In the order of their names: w00 leads, w01 … w04 are below it, w05 … w08 are below w01.
MANY = {f"w{rank:02}": WorkerId(rank, 0) for rank in range(9)}


def gatherings_of(name: str) -> Gatherings:
    return Gatherings(name, "lunch")


def test_the_leader_waits_for_all_and_keeps_what_each_brought() -> None:
    leader = gatherings_of("a")
    meeting = leader.begin(MEMBERS)
    leader.bring(meeting, "a", 1)
    leader.bring(meeting, "c", 3)
    assert leader.get(meeting).missing == ["b"]
    assert not leader.get(meeting).ready.is_set()
    leader.bring(meeting, "b", 2)
    assert leader.get(meeting).ready.is_set()
    assert leader.get(meeting).brought == {"a": 1, "b": 2, "c": 3}


def test_who_leads_a_branch_waits_for_it_and_then_for_the_one_above() -> None:
    middle = gatherings_of("w01")
    meeting = middle.begin(MANY)
    gathering = middle.get(meeting)
    assert gathering.missing == ["w05", "w06", "w07", "w08"]
    for name in ("w01", "w05", "w06", "w07", "w08"):
        assert not gathering.ready.is_set()
        middle.bring(meeting, name, 1)
    assert gathering.ready.is_set()
    assert gathering.missing == ["w00"]
    assert gathering.neighbours_above == [MANY["w00"]]
    middle.announce(meeting, 9)
    assert gathering.settled.is_set()
    assert gathering.result == 9
    assert gathering.missing == []


def test_the_leader_learns_who_is_missing_below_those_who_have_come() -> None:
    leader = gatherings_of("w00")
    meeting = leader.begin(MANY)
    leader.bring(meeting, "w04", 1)
    leader.note_missing(meeting, MANY["w01"], ["w06", "w08"])
    assert leader.get(meeting).missing == ["w02", "w03", "w06", "w08"]
    leader.note_missing("lunch of strangers#0", MANY["w01"], ["w05"])


def test_meetings_tell_whom_they_wait_for() -> None:
    leader = gatherings_of("a")
    meeting = leader.begin(MEMBERS)
    leader.bring(meeting, "a", 1)
    assert leader.waiting() == [["b", "c"]]
    leader.end(meeting)
    assert leader.waiting() == []


def test_others_may_come_before_the_leader() -> None:
    name = gatherings_of("b").begin(MEMBERS)
    leader = gatherings_of("a")
    leader.bring(name, "b", 2)
    leader.bring(name, "c", 3)
    assert leader.begin(MEMBERS) == name
    leader.bring(name, "a", 1)
    assert leader.get(name).ready.is_set()


def test_a_follower_waits_for_the_leaders_announcement() -> None:
    follower = gatherings_of("b")
    meeting = follower.begin(MEMBERS)
    follower.bring(meeting, "b", 2)
    assert follower.get(meeting).missing == ["a"]
    follower.announce(meeting, {"a": 1, "b": 2, "c": 3})
    assert follower.get(meeting).settled.is_set()


def test_who_waits_no_longer_ignores_what_comes() -> None:
    follower = gatherings_of("b")
    meeting = follower.begin(MEMBERS)
    follower.end(meeting)
    follower.announce(meeting, {"a": 1, "b": 2, "c": 3})
    follower.bring(meeting, "b", 2)
    follower.call_off(meeting, RpcError("no"))
    assert follower.waiting() == []
    assert follower._open == {}


def test_a_meeting_that_is_called_off_ends_the_waiting() -> None:
    follower, error = gatherings_of("b"), RpcError("no")
    meeting = follower.begin(MEMBERS)
    follower.call_off(meeting, error)
    follower.call_off(meeting, RpcError("once more"))
    assert follower.get(meeting).settled.is_set()
    assert follower.get(meeting).failure is error
    follower.end(meeting)
    follower.call_off(meeting, error)


def test_whoever_comes_late_hears_that_the_meeting_was_called_off() -> None:
    follower, error = gatherings_of("b"), RpcError("no")
    meeting = gatherings_of("a").begin(MEMBERS)
    follower.call_off(meeting, error)
    assert follower.begin(MEMBERS) == meeting
    assert follower.get(meeting).failure is error
    follower.end(meeting)
    assert follower.get(follower.begin(MEMBERS)).failure is None


def test_what_is_called_off_elsewhere_is_no_meeting_of_this_purpose() -> None:
    follower = gatherings_of("b")
    follower.call_off(Gatherings("a", "dinner").begin(MEMBERS), RpcError("no"))
    assert follower._open == {}


def test_nobody_comes_twice() -> None:
    leader = gatherings_of("a")
    meeting = leader.begin(MEMBERS)
    leader.bring(meeting, "b", 2)
    with pytest.raises(ValueError, match="b came twice"):
        leader.bring(meeting, "b", 2)


def test_meetings_of_the_same_workers_are_counted_alike_everywhere() -> None:
    leader, follower = gatherings_of("a"), gatherings_of("b")
    names = [leader.begin(MEMBERS), leader.begin(MEMBERS)]
    assert names == [follower.begin(MEMBERS), follower.begin(MEMBERS)]
    other_purpose = Gatherings("a", "dinner").begin(MEMBERS)
    assert len({*names, leader.begin({"a": MEMBERS["a"]}), other_purpose}) == 4


def test_the_name_of_a_meeting_does_not_grow_with_its_members() -> None:
    many = {f"w{rank}": WorkerId(rank, 0) for rank in range(1000)}
    assert len(gatherings_of("w0").begin(many)) < 50


def test_only_members_meet() -> None:
    with pytest.raises(ValueError, match="'x' is not among the workers"):
        gatherings_of("x").begin(MEMBERS)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("name", "dead"), [("a", "c"), ("b", "a")])
def test_the_death_of_one_who_is_awaited_ends_the_waiting(name, dead, before) -> None:
    gatherings, error = gatherings_of(name), PeerDiedError(dead)
    if before:
        gatherings.lose(MEMBERS[dead], error)
    meeting = gatherings.begin(MEMBERS)
    gatherings.bring(meeting, name, 1)
    if not before:
        gatherings.lose(MEMBERS[dead], error)
    assert gatherings.get(meeting).settled.is_set()
    assert gatherings.get(meeting).failure is error


def test_a_parent_that_dies_while_its_branch_gathers_is_noticed_when_all_have_come() -> None:
    middle, error = gatherings_of("w01"), PeerDiedError("w00")
    meeting = middle.begin(MANY)
    middle.lose(MANY["w00"], error)
    for name in ("w01", "w05", "w06", "w07", "w08"):
        middle.bring(meeting, name, 1)
    assert middle.get(meeting).failure is error


def test_the_death_of_one_who_has_come_or_is_not_awaited_changes_nothing() -> None:
    leader, follower = gatherings_of("a"), gatherings_of("b")
    meeting = leader.begin(MEMBERS)
    follower.begin(MEMBERS)
    leader.bring(meeting, "c", 3)
    leader.lose(MEMBERS["c"], PeerDiedError("c"))
    follower.lose(MEMBERS["c"], PeerDiedError("c"))
    assert not leader.get(meeting).settled.is_set()
    assert not follower.get(meeting).settled.is_set()


def test_a_later_life_of_the_dead_is_awaited_again() -> None:
    leader = gatherings_of("a")
    leader.lose(WorkerId(1, 0), PeerDiedError("b"))
    meeting = leader.begin({**MEMBERS, "b": WorkerId(1, 1)})
    assert leader.get(meeting).failure is None


def test_who_comes_again_hears_the_result_again() -> None:
    """Its word or the answer may have been lost."""
    leader = gatherings_of("a")
    meeting = leader.begin(MEMBERS)
    for name in ("a", "b", "b", "c"):
        leader.bring(meeting, name, 1, may_repeat=True)
        assert leader.result_of(meeting) == []
    leader.announce(meeting, 3)
    assert leader.result_of(meeting) == [3]
    leader.end(meeting)
    assert leader.result_of(meeting) == [3]
    following = leader.begin(MEMBERS)
    assert leader.result_of(following) == []
    assert leader.result_of(meeting) == [3]
