"""Ranks that come together, or fail together."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rendezvous import static_group
from lockstitch.rendezvous.contacts import Contacts
from lockstitch.rendezvous.joining import join
from lockstitch.rendezvous.roster import Member
from lockstitch.rendezvous.static_group import call_off
from tests.unit.rendezvous.groups import all_at_once, each_kind_of_store, new_store


def meet(store, *names: str, timeout_seconds: float = 30, world_size: int | None = None):
    """What joining brought to each of the ranks, which have these names."""
    size = world_size or len(names)

    def joining(rank: int, name: str):
        return lambda: join(store, name, rank, size, [f"unix:/{name}"], timeout_seconds)

    return all_at_once(*(joining(rank, name) for rank, name in enumerate(names)))


@each_kind_of_store
def test_everybody_knows_everybody(kind, tmp_path):
    rosters = meet(new_store(kind, tmp_path), "a", "b", "c")
    for rank, roster in enumerate(rosters):
        assert roster.me.id == rank
        assert [each.info.name for each in roster.members()] == ["a", "b", "c"]
        assert roster.find("b") == roster.find(1) == roster.find(WorkerId(1, 0))
        assert roster.find("b").addresses == ("unix:/b",)
        assert roster.find("d") is None


def test_a_name_given_twice_is_an_error_on_every_rank():
    errors = meet(HashStore(), "a", "b", "a")
    assert len(errors) == 3
    for error in errors:
        with pytest.raises(RuntimeError, match="RPC worker name a is not unique"):
            raise error


def test_who_finds_a_name_given_twice_stays_until_the_others_have_found_it(monkeypatch):
    monkeypatch.setattr(static_group, "_FAREWELL_SECONDS", 60.0)
    store, outcome = HashStore(), []
    store.set("meeting/0/1", Member(WorkerInfo("a", 1, 0), ("unix:/a",), "", "").encode())
    first = threading.Thread(
        target=lambda: outcome.extend(all_at_once(lambda: join(store, "a", 0, 2, ["unix:/a"], 30)))
    )
    first.start()
    store.wait(["meeting/0/refused/0"], timedelta(seconds=30))
    assert not outcome
    store.set("meeting/0/refused/1", "")
    first.join(30)
    assert "is not unique" in str(outcome[0])


def test_ranks_that_do_not_come_are_named_by_those_that_wait():
    errors = meet(HashStore(), "a", "b", world_size=4, timeout_seconds=0.05)
    for error in errors:
        with pytest.raises(RuntimeError, match=r"4 ranks to join, but ranks \[.*2, 3\] did"):
            raise error


def test_who_waited_in_vain_may_try_again():
    store = HashStore()
    meet(store, "a", "b", world_size=3, timeout_seconds=0.05)
    rosters = meet(store, "a", "b", "c")
    assert {roster.me.generation for roster in rosters} == {0}


@each_kind_of_store
def test_who_meets_again_on_a_store_lives_a_new_life(kind, tmp_path):
    store = new_store(kind, tmp_path)
    for roster in meet(store, "a", "b"):
        roster.leave()
    again = meet(store, "b", "c")
    assert [each.id for each in again[0].members()] == [WorkerId(0, 1), WorkerId(1, 1)]
    assert again[1].find("a") is None


def test_leaving_twice_is_leaving_once():
    store = HashStore()
    one, other = meet(store, "a", "b")
    one.leave()
    one.leave()
    with pytest.raises(RuntimeError, match="mixes"):
        Contacts(store).check_is_not_static()
    other.leave()
    Contacts(store).check_is_not_static()


def test_leaving_a_store_that_is_gone_raises_nothing(monkeypatch):
    store = HashStore()
    (roster,) = meet(store, "a")

    def gone() -> None:
        raise RuntimeError("connection was closed")

    monkeypatch.setattr(roster, "_withdraw", gone)
    roster.leave()


@each_kind_of_store
def test_a_meeting_that_is_called_off_fails_at_once_for_all_who_wait(kind, tmp_path):
    store = new_store(kind, tmp_path)
    another = store.clone()

    def call_off_when_two_have_come():
        while not another.check(["meeting/0/0", "meeting/0/2"]):
            pass
        return sorted(member.info.name for member in call_off(another, 3))

    def joining(rank, name):
        return lambda: join(store.clone(), name, rank, 3, [f"unix:/{name}"], 50)

    first, third, came = all_at_once(joining(0, "a"), joining(2, "c"), call_off_when_two_have_come)
    assert came == ["a", "c"]
    for error in (first, third):
        with pytest.raises(RuntimeError, match="called off"):
            raise error


@each_kind_of_store
@pytest.mark.parametrize("sizes", [(3, 2), (2, 3), (3, 3, 4), (4, 3, 3)])
def test_ranks_with_different_world_sizes_hear_so_at_once(kind, sizes, tmp_path):
    store = new_store(kind, tmp_path)

    def joining(rank, size):
        return lambda: join(store.clone(), f"w{rank}", rank, size, [f"unix:/{rank}"], 50)

    for error in all_at_once(*(joining(rank, size) for rank, size in enumerate(sizes))):
        with pytest.raises(RuntimeError, match=r"was given world_size \d, rank \d world_size \d"):
            raise error


def test_who_comes_late_with_another_world_size_leaves_the_others_alone():
    store = HashStore()
    rosters = meet(store, "a", "b")
    with pytest.raises(RuntimeError, match=r"rank \d was given world_size 2, rank 2 world_size 3"):
        join(store, "c", 2, 3, ["unix:/c"], 50)
    assert [len(roster.members()) for roster in rosters] == [2, 2]


def test_ranks_may_try_again_with_the_right_world_size():
    store = HashStore()
    meet(store, "a", "b", world_size=3, timeout_seconds=0.05)
    assert [roster.me.id for roster in meet(store, "a", "b")] == [0, 1]


@each_kind_of_store
def test_two_of_one_rank_hear_so_at_once(kind, tmp_path):
    store = new_store(kind, tmp_path)

    def joining(name):
        return lambda: join(store.clone(), name, 0, 2, [f"unix:/{name}"], 50)

    started = time.monotonic()
    for error in all_at_once(joining("a"), joining("b")):
        with pytest.raises(RuntimeError, match=r"rank 0 came twice: worker '[ab]' has that rank"):
            raise error
    assert time.monotonic() - started < 40


def test_two_of_one_rank_that_come_in_the_same_instant_hear_so():
    store = HashStore()

    def me(generation):
        store.add("meetings/0", 1)  # the other one, who looked for a meeting just before
        return Member(WorkerInfo("a", 0, generation), ("unix:/a",), "", "")

    with pytest.raises(RuntimeError, match="rank 0 came twice: worker 'a' has that rank"):
        static_group.meet(store, me, 0, 2, 30)
    for rank in range(2):
        assert b"rank 0 came twice" in store.get(f"meeting/1/{rank}")  # where the other one waits


def test_who_comes_as_a_rank_that_has_left_is_let_in():
    store = HashStore()
    for roster in meet(store, "a", "b"):
        roster.leave()
    assert [roster.me.name for roster in meet(store, "c", "d")] == ["c", "d"]


def test_who_fails_has_the_client_by_which_it_waits_before_the_others_may_go():
    class Leaving:
        """A store that goes as soon as this rank has said that it fails."""

        def __init__(self) -> None:
            self.is_there = True

        def clone(self):
            assert self.is_there, "it would wait for a minute"
            return self

        def set(self, _key: str, _value: str) -> None:
            self.is_there = False

        def check(self, _keys: list[str]) -> bool:
            raise RuntimeError("it has gone")

        def wait(self, keys: list[str], _timeout: timedelta) -> None:
            self.check(keys)

    with (
        pytest.raises(RuntimeError, match="another version"),
        static_group.failing_together(Leaving(), WorkerInfo("b", 1, 0), 2),
    ):
        raise RuntimeError("another version")
