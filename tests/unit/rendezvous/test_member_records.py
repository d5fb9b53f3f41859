"""Tables of member records: what is later wins, in whatever order it is learned."""

from __future__ import annotations

import itertools

import pytest

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import MAX_GENERATION, WorkerId, WorkerInfo
from lockstitch.rendezvous.member_records import MemberRecord, MemberRecords, MemberState
from lockstitch.rendezvous.roster import Member


def record(name: str, rank: int, generation: int = 0, age: int | None = None) -> MemberRecord:
    member = Member(WorkerInfo(name, rank, generation), (f"unix:/{name}",), "host")
    return MemberRecord(member, rank if age is None else age, f"{name}/{generation}")


def ended(which: MemberRecord, state: MemberState = MemberState.DIED) -> MemberRecord:
    return which.ended(state, "somehow")


def test_the_order_in_which_records_are_learned_does_not_matter():
    one, other = record("a", 0), record("b", 0, 1, age=5)
    heard = [one, ended(one), ended(one, MemberState.LEFT), other, record("c", 1)]
    digests = set()
    for order in itertools.permutations(heard):
        table = MemberRecords(order)
        digests.add(table.digest())
        assert table.all() == [other, record("c", 1)]
        assert not table.beyond(heard)
    assert len(digests) == 1


def test_changes_are_what_is_seen_for_the_first_time():
    table = MemberRecords()
    one, other = record("a", 0), record("b", 0, 1)
    assert table.learn(one) == [one]
    assert table.learn(one) == []
    over, begun = table.learn(other)
    assert (over.id, over.state) == (one.id, MemberState.DIED)
    assert "generation 1 has taken its place" in over.cause
    assert begun == other
    assert table.learn(ended(one)) == []
    assert table.learn(ended(other)) == [ended(other)]
    assert table.learn(ended(other, MemberState.LEFT)) == []
    assert table.learn(ended(record("c", 3))) == []


def test_members_are_found_by_name_rank_and_id():
    a, b = record("a", 0), record("b", 5, 2, age=1)
    table = MemberRecords([a, b])
    assert table.find("b") is table.find(5) is table.find(WorkerId(5, 2)) is b
    assert table.find("c") is table.find(1) is table.find(WorkerId(5, 1)) is None
    assert table.living() == [a, b]
    assert table.eldest() is a
    table.learn(ended(a))
    assert table.find("a") is table.find(0) is table.find(a.id) is None
    assert table.eldest() is b
    assert table.is_over(a.id)
    assert table.is_over(WorkerId(5, 1))
    assert not table.is_over(b.id)
    assert not table.is_over(WorkerId(7, 0))


def test_what_one_knows_beyond_another():
    a, b = record("a", 0), record("b", 1)
    assert MemberRecords([a, ended(b)]).beyond([b]) == (a, ended(b))
    assert MemberRecords([a]).beyond([a, b]) == ()


def test_a_newcomer_gets_its_names_former_rank_or_the_lowest_free_one():
    table = MemberRecords([record("a", 0), record("b", 1), record("c", 2)])
    assert table.free_rank("d") == 3
    table.learn(ended(record("b", 1)))
    table.learn(ended(record("c", 2)))
    assert table.free_rank("d") == 1
    assert table.free_rank("c") == 2
    table.learn(ended(record("b", 1, MAX_GENERATION)))
    assert table.free_rank("b") == 2


@pytest.mark.parametrize("state", list(MemberState))
def test_lives_travel_as_plain_values(state):
    one = record("a", 3, 7).ended(state, "why")
    assert MemberRecord.of(one.plain()) == one


@pytest.mark.parametrize(
    "changed",
    [{"0": "no name"}, {"1": -1}, {"2": MAX_GENERATION + 1}, {"2": -1}, {"7": 3}, {"3": 5}],
    ids=str,
)
def test_impossible_lives_are_refused(changed):
    plain = [*record("a", 0).plain()]
    for place, value in changed.items():
        plain[int(place)] = value
    with pytest.raises(RemoteProtocolError, match="impossible worker"):
        MemberRecord.of(tuple(plain))
