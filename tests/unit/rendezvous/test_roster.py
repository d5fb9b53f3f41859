"""The table of members, and how a member is published."""

from __future__ import annotations

import json

import pytest

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rendezvous.roster import Member, Table, check_names_are_unique


def member(name: str, rank: int, generation: int = 0) -> Member:
    return Member(WorkerInfo(name, rank, generation), (f"unix:/{name}",), "host")


def test_a_member_survives_publication_generation_and_all():
    one = member("w3", 3, generation=7)
    again = Member.decode(one.encode().encode())
    assert again == one
    assert again.id == WorkerId(3, 7)


def entry(**changes: object) -> bytes:
    return json.dumps({**json.loads(member("w", 0).encode()), **changes}).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x80\x04.",
        b"[]",
        b"{}",
        entry(rank="x"),
        entry(rank=-1),
        entry(generation=1 << 12),
        entry(addresses=1),
        entry(name="no name"),
        entry(rank=float("inf")),
        b"[" * 100_000,
    ],
)
def test_what_is_no_member_is_refused(text):
    with pytest.raises(RemoteProtocolError, match="the store holds"):
        Member.decode(text)


def test_members_are_found_by_name_rank_and_id():
    one, other = member("a", 0), member("b", 1, generation=2)
    table = Table([one, other])
    assert table.find("a") is table.find(0) is table.find(WorkerId(0, 0)) is one
    assert table.find("b") is table.find(1) is table.find(WorkerId(1, 2)) is other
    assert table.find("c") is table.find(2) is table.find(WorkerId(1, 1)) is None


def test_members_are_listed_by_rank():
    assert [
        each.info.id for each in Table([member("b", 2), member("a", 9), member("c", 0)]).members()
    ] == [0, 2, 9]


def test_a_later_life_takes_the_earlier_ones_place():
    table = Table([member("a", 0), member("b", 1)])
    again = member("a", 0, generation=1)
    table.add(again)
    assert table.find("a") is again
    renamed = member("c", 1, generation=1)
    table.add(renamed)
    assert table.find("b") is None
    moved = member("c", 5)
    table.add(moved)
    assert table.find(1) is None
    assert table.members() == [again, moved]


def test_removing_strikes_out_exactly_that_life():
    first, second = member("a", 0), member("a", 0, generation=1)
    table = Table([second])
    table.remove(first)
    assert table.find("a") is second
    table.remove(second)
    table.remove(second)
    assert table.members() == []


def test_two_members_with_one_name_are_an_error_that_names_them():
    check_names_are_unique([member("a", 0), member("b", 1)])
    with pytest.raises(RuntimeError, match="name a is not unique. Workers 0 and 2"):
        check_names_are_unique([member("a", 0), member("b", 1), member("a", 2)])
