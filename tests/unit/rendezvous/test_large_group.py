"""Many ranks meet in blocks: here in blocks of three, so that a few dozen are many."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.distributed_c10d import Store

from lockstitch.errors import RpcError
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rendezvous import large_group, static_group
from lockstitch.rendezvous.joining import join
from lockstitch.rendezvous.large_group import LargeMeeting
from lockstitch.rendezvous.roster import Member
from lockstitch.testing import ManualClock
from tests.unit.rendezvous.groups import all_at_once, new_store


@pytest.fixture(autouse=True)
def _blocks_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_group, "MOST_WHO_READ_ALL", 3)
    monkeypatch.setattr(static_group, "BLOCK", 3)


class CountingStore(Store):
    """A store that counts what it is asked, and how many bytes it answers; once `is_gone`, it
    answers nothing."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store: Any = store
        self.steps: Counter[str] = Counter()
        self.read = 0
        self.is_gone = False

    def _ask(self, what: str, *arguments: Any) -> Any:
        if self.is_gone:
            raise RuntimeError("connection was closed")
        self.steps[what] += 1
        answer = getattr(self.store, what)(*arguments)
        values = answer if isinstance(answer, list) else [answer]
        self.read += sum(len(value) for value in values if isinstance(value, bytes))
        return answer

    def set(self, *arguments: Any) -> None:
        self._ask("set", *arguments)

    def get(self, key: str) -> bytes:
        return bytes(self._ask("get", key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return list(self._ask("multi_get", keys))

    def compare_set(self, *arguments: Any) -> bytes:
        return bytes(self._ask("compare_set", *arguments))

    def add(self, *arguments: Any) -> int:
        return int(self._ask("add", *arguments))

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", keys))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete_key", key))

    def wait(self, *arguments: Any) -> None:
        self._ask("wait", *arguments)

    def clone(self) -> CountingStore:
        return self


def meet(store: Any, names: list[str], size: int | None = None, seconds: float = 30) -> list[Any]:
    def joining(rank: int, name: str) -> Any:
        kind = "odd" if rank % 2 else ""
        count = size or len(names)
        return lambda: join(store.clone(), name, rank, count, [f"unix:/{name}"], seconds, kind=kind)

    return all_at_once(*(joining(rank, name) for rank, name in enumerate(names)))


def names(count: int) -> list[str]:
    return [f"w{rank}" for rank in range(count)]


@pytest.mark.parametrize(
    ("kind", "count"), [("tcp", 4), ("file", 5), ("hash", 9), ("hash", 10), ("hash", 28)]
)
def test_everybody_finds_everybody(kind, count, tmp_path):
    store = new_store(kind, tmp_path)  # a server's, while it is kept
    rosters = meet(store, names(count))
    for rank, roster in enumerate(rosters):
        assert (roster.me.id, roster.size) == (rank, count)
        assert roster.census.kinds == tuple(("", "odd")[each % 2] for each in range(count))
        assert len(set(roster.census.hosts)) == 1
        far = (rank + count // 2) % count
        assert roster.find(f"w{far}") == roster.find(far) == roster.find(WorkerId(far, 0))
        assert roster.find(far).addresses == (f"unix:/w{far}",)
        for nobody in ("x", count, -1, WorkerId(far, 1)):
            assert roster.find(nobody) is None
    assert [each.info.name for each in rosters[-1].members()] == names(count)


def test_each_block_has_one_speaker_whom_all_agree_about():
    for size in range(4, 60):
        meetings = [LargeMeeting(HashStore(), 0, rank, size, 3) for rank in range(size)]
        spoken = [(b.level, b.index) for meeting in meetings for b in meeting._own_blocks()]
        assert len(spoken) == len(set(spoken))
        tops = [meeting._block(meeting._top, 0) for meeting in meetings]
        assert {block.ranks for block in tops} == {range(size)}
        assert spoken.count((tops[0].level, 0)) == 1


def test_steps_and_bytes_of_a_rank_do_not_grow_with_the_ranks(monkeypatch):
    monkeypatch.setattr(static_group, "BLOCK", 8)
    inner, counted = HashStore(), [CountingStore(HashStore()) for _ in range(64)]
    for store in counted:
        store.store = inner

    def joining(rank):
        return lambda: join(counted[rank], f"w{rank}", rank, 64, [f"unix:/w{rank}"], 30)

    rosters = all_at_once(*map(joining, range(64)))
    assert [roster.me.id for roster in rosters] == list(range(64))
    assert max(store.steps.total() for store in counted) <= 12
    assert max(store.read for store in counted) <= 2_500


def test_addresses_that_cannot_be_looked_up_any_more_are_an_error_with_words():
    store = CountingStore(HashStore())
    rosters = meet(store, names(5))
    assert rosters[4].find("w0").info.id == 0
    store.is_gone = True
    assert rosters[4].find(0).info.name == "w0"
    for ask in (lambda: rosters[4].find(1), lambda: rosters[4].find("w2"), rosters[4].members):
        with pytest.raises(RpcError, match="that has gone, perhaps with rank 0"):
            ask()


def test_a_name_given_twice_is_an_error_on_every_rank():
    errors = meet(HashStore(), ["a", "b", "c", "d", "a"])
    assert len(errors) == 5
    for error in errors:
        with pytest.raises(RuntimeError, match="RPC worker name a is not unique"):
            raise error


def test_ranks_that_do_not_come_are_named_by_those_that_wait():
    errors = meet(HashStore(), names(11), size=14, seconds=0.3)
    for rank in (0, 3, 5, 10):
        with pytest.raises(RuntimeError, match=r"14 ranks to join, but ranks \[.*\] did not come"):
            raise errors[rank]
    assert "12" in str(errors[5])


def test_who_waited_in_vain_may_try_again_under_other_names():
    store = HashStore()
    meet(store, names(4), size=5, seconds=0.2)
    rosters = meet(store, ["w1", "w0", "x", "y", "z"])
    assert {roster.me.generation for roster in rosters} == {0}
    assert [roster.find("w0").info.id for roster in rosters] == [1] * 5


def test_who_meets_again_lives_a_new_life():
    store = HashStore()
    for roster in meet(store, names(5)):
        roster.leave()
    again = meet(store, ["b", *names(4)])
    assert again[4].find("b").id == WorkerId(0, 1)
    assert again[0].find("w3").id == WorkerId(4, 1)
    assert again[0].find("w4") is None


def test_two_of_one_rank_hear_so_at_once():
    store = HashStore()

    def joining(rank, name):
        return lambda: join(store, name, rank, 5, [f"unix:/{name}"], 50)

    errors = all_at_once(joining(0, "a"), joining(1, "b"), joining(1, "c"))
    for error in errors:
        with pytest.raises(RuntimeError, match=r"rank 1 came twice: worker '[bc]' has that rank"):
            raise error


@pytest.mark.parametrize("sizes", [(5, 5, 4), (4, 5, 5)])
def test_ranks_with_different_world_sizes_hear_so_at_once(sizes):
    store = HashStore()

    def joining(rank, size):
        return lambda: join(store, f"w{rank}", rank, size, [f"unix:/{rank}"], 50)

    for error in all_at_once(*(joining(rank, size) for rank, size in enumerate(sizes))):
        with pytest.raises(RuntimeError, match=r"was given world_size \d, rank \d world_size \d"):
            raise error


def test_entry_that_nobody_can_read_ends_the_meeting_for_all():
    store = HashStore()
    store.set("meeting/0/4", "no entry")
    store.set("meetings/4", "1")
    errors = meet(store, names(4), size=5)
    for error in errors:
        with pytest.raises(RuntimeError, match="called off .*the store holds no worker's entry"):
            raise error


def test_members_may_be_looked_up_from_many_threads():
    rosters = meet(HashStore(), names(20))
    found: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: found.extend(rosters[0].find(rank).info.id for rank in range(20))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(found) == dict.fromkeys(range(20), 4)


@pytest.mark.parametrize("size", [3, 20])
def test_members_that_will_be_asked_for_are_looked_up_by_one_request(size, monkeypatch):
    read: list[list[str]] = []

    def read_all(store, keys):
        read.append(keys)
        return whole(store, keys)

    whole = large_group.read_all
    rosters = meet(HashStore(), names(size))
    monkeypatch.setattr(large_group, "read_all", read_all)
    rosters[1].fetch({0, 1, 2})
    assert read == ([["meeting/0/0", "meeting/0/2"]] if size > 3 else [])
    monkeypatch.setattr(large_group.StoredTable, "_read", None)
    assert [rosters[1].find(rank).info.id for rank in range(3)] == [0, 1, 2]


def test_meeting_that_some_know_to_be_called_off_is_so_for_all():
    store = HashStore()
    for rank in range(3):
        store.set(f"meeting/0/{rank}", Member(WorkerInfo(f"w{rank}", rank), (), "host").encode())
    LargeMeeting(store, 0, 1, 3, 3).call_off("called off (x)")
    others = [LargeMeeting(store, 0, rank, 3, 3).census(30.0) for rank in (1, 0, 2)]
    assert others == ["called off (x)"] * 3  # also for the one that puts the census together


def test_all_waits_of_a_rank_together_last_as_long_as_it_wants_to_wait(monkeypatch):
    clock, waits = ManualClock(), []

    def wait(_store, keys, seconds, _notice, **_others):
        waits.append(seconds)
        clock.advance(min(seconds, 7.0))
        return keys if len(waits) > 1 else []

    monkeypatch.setattr(large_group, "missing_keys", wait)
    store = HashStore()
    for rank in range(3):
        store.set(f"meeting/0/{rank}", Member(WorkerInfo(f"w{rank}", rank), (), "host").encode())
    assert LargeMeeting(store, 0, 0, 4, 3, clock).census(10.0) == [3]
    assert waits == [10.0, 3.0]
