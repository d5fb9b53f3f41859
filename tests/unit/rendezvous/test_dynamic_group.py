"""Ranks that come and go."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from lockstitch.ids import WorkerId
from lockstitch.rendezvous.joining import join
from tests.unit.rendezvous.groups import all_at_once, each_kind_of_store, new_store


def enter(store, name: str, rank: int = -1):
    return join(store, name, rank, None, [f"unix:/{name}"])


def names(roster) -> list[str]:
    return [each.info.name for each in roster.members()]


@each_kind_of_store
def test_newcomers_know_who_is_in_and_those_learn_of_them(kind, tmp_path):
    store = new_store(kind, tmp_path)
    first = enter(store, "a")
    assert names(first) == ["a"]
    second = enter(store, "b", rank=5)
    assert second.find("a").addresses == first.find(0).addresses == ("unix:/a",)
    assert first.find("b") == first.find(5) == first.find(WorkerId(5, 0))
    assert names(first) == names(second) == ["a", "b"]
    assert first.find("c") is first.find(7) is first.find(WorkerId(5, 1)) is None


@each_kind_of_store
def test_many_at_once_get_ranks_of_their_own(kind, tmp_path):
    store = new_store(kind, tmp_path)
    rosters = all_at_once(*(lambda n=n: enter(store, f"w{n}") for n in range(6)))
    assert sorted(roster.me.id for roster in rosters) == list(range(6))
    assert all(len(roster.members()) == 6 for roster in rosters)


def test_a_rank_that_is_taken_is_passed_over_or_refused():
    store = HashStore()
    enter(store, "a", rank=0)
    assert enter(store, "b").me.id == 1
    with pytest.raises(RuntimeError, match="rank 0 is taken by worker a"):
        enter(store, "c", rank=0)


def test_one_of_many_gets_a_name_and_the_others_are_refused():
    store = HashStore()
    outcomes = all_at_once(*(lambda: enter(store, "a") for _ in range(4)))
    (winner,) = [each for each in outcomes if not isinstance(each, Exception)]
    for error in outcomes:
        if error is not winner:
            with pytest.raises(RuntimeError, match="RPC worker name a is not unique"):
                raise error
    assert names(winner) == ["a"]


def test_a_namesake_with_the_same_rank_takes_nothing_from_the_first():
    store = HashStore()
    first = enter(store, "a", rank=0)
    with pytest.raises(RuntimeError, match="rank 0 is taken by worker a"):
        enter(store, "a", rank=0)
    assert enter(store, "b").find(0).id == first.me.worker


def test_a_refused_worker_leaves_its_rank_free():
    store = HashStore()
    enter(store, "a", rank=0)
    with pytest.raises(RuntimeError, match="not unique"):
        enter(store, "a", rank=1)
    assert enter(store, "b", rank=1).me.id == 1


def test_who_has_left_is_struck_out_and_may_come_back_as_another_life():
    store = HashStore()
    one, other = enter(store, "a"), enter(store, "b", rank=1)
    earlier = one.find("b")
    other.leave()
    assert names(one) == ["a"]
    assert one.find("b") is None
    enter(store, "b", rank=1)
    assert one.find("b").id == WorkerId(1, 1)
    assert one.find(earlier.id) is None


def test_what_is_known_is_not_asked_for_again_until_it_is_forgotten():
    store = HashStore()
    one, other = enter(store, "a"), enter(store, "b")
    member = one.find("b")
    other.leave()
    assert one.find("b") is member
    one.forget(member)
    assert one.find("b") is None


def test_the_dead_are_evicted_once_and_their_place_is_free():
    store = HashStore()
    one, other, dead = (enter(store, name) for name in "abd")
    member = one.find("d")
    all_at_once(lambda: one.evict(member), lambda: other.evict(member), dead.leave)
    assert names(one) == ["a", "b"]
    replacement = enter(store, "d", rank=dead.me.id)
    assert replacement.me.generation == 1
    one.evict(member)  # late, and of a life that is over
    assert names(one) == ["a", "b", "d"]
    for roster in (one, other, replacement):
        roster.leave()
    assert join(store, "s", 0, 1, []).me.id == 0  # so the members were counted right


def test_one_that_is_still_on_its_way_in_is_not_waited_for():
    store = HashStore()
    roster = enter(store, "a")
    store.add("newcomers", 1)  # it has its number, and has not yet written its name
    enter(store, "c")
    assert names(roster) == ["a", "c"]
    store.set("newcomer/1", "b")
    enter(store, "b")
    assert sorted(names(roster)) == ["a", "b", "c"]


def test_leaving_a_store_that_is_gone_raises_nothing(monkeypatch):
    roster = enter(HashStore(), "a")

    def gone(member) -> None:
        raise RuntimeError("connection was closed")

    monkeypatch.setattr(roster, "evict", gone)
    roster.leave()
