"""The one value in the store: it is replaced whole, and only by who has seen it."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import WorkerInfo
from lockstitch.rendezvous import Member
from lockstitch.rendezvous import contacts as contacts_module
from lockstitch.rendezvous.contacts import Contacts
from lockstitch.rendezvous.member_records import MemberRecord, MemberState
from tests.unit.rendezvous.groups import all_at_once, each_kind_of_store, new_store


def member(name: str, rank: int = 0) -> Member:
    return Member(WorkerInfo(name, rank), (f"unix:/{name}",), "host")


@each_kind_of_store
def test_of_many_founders_one_comes_first(kind, tmp_path):
    store = new_store(kind, tmp_path)
    seen = Contacts(store).read()
    assert (seen.group_id, seen.members) == ("", {})
    outcomes = all_at_once(
        *(
            lambda n=n: Contacts(store).found(seen, f"world{n}", f"mark{n}", member(f"w{n}"))
            for n in range(4)
        )
    )
    assert sorted(outcomes) == [False, False, False, True]
    winner = outcomes.index(True)
    assert Contacts(store).read().members == {f"mark{winner}": member(f"w{winner}")}


@each_kind_of_store
def test_members_that_come_at_the_same_time_are_all_listed(kind, tmp_path):
    store = new_store(kind, tmp_path)
    contacts = Contacts(store)
    assert contacts.found(contacts.read(), "world", "first", member("first"))
    outcomes = all_at_once(
        *(
            lambda n=n: Contacts(store).add("world", f"m{n}", member(f"w{n}", n))
            for n in range(1, 5)
        )
    )
    assert outcomes == [True] * 4
    assert next(iter(contacts.read().members)) == "first"
    assert set(contacts.read().members) == {"first", "m1", "m2", "m3", "m4"}
    contacts.remove("world", "m1")
    contacts.remove("world", "m1")
    contacts.remove("world", "first")
    assert set(contacts.read().members) == {"m2", "m3", "m4"}


def test_who_was_let_into_a_group_that_is_no_more_is_told_so():
    contacts = Contacts(HashStore())
    former = contacts.read()
    assert contacts.found(former, "one", "a", member("a"))
    seen = contacts.read()
    assert contacts.found(seen, "other", "b", member("b"))
    assert not contacts.add("one", "c", member("c"))
    assert not contacts.found(seen, "third", "d", member("d"))
    contacts.remove("one", "b")  # of another group: it means nothing here
    assert contacts.read().members == {"b": member("b")}


def records(*names: str, dead: str = "") -> list[MemberRecord]:
    """One for each of these names, by rank."""
    table = [
        MemberRecord(member(name, rank), rank, f"mark-{name}") for rank, name in enumerate(names)
    ]
    return [
        record.ended(MemberState.DIED, "it was silent") if record.name in dead else record
        for record in table
    ]


def test_what_the_eldest_knows_is_written_down_and_of_others_nothing_is_touched():
    contacts = Contacts(HashStore())
    contacts.found(contacts.read(), "world", "mark-a", member("a", 0))
    contacts.add("world", "mark-b", member("b", 1))
    contacts.add("world", "mark-new", member("new", 3))  # the eldest has yet to hear of it
    contacts.update("world", records("a", "b", "invited", dead="b"))
    assert set(contacts.read().members) == {"mark-a", "mark-invited", "mark-new"}
    contacts.update("another world", records("a", dead="a"))
    assert set(contacts.read().members) == {"mark-a", "mark-invited", "mark-new"}


def test_the_last_that_is_named_names_those_who_stay():
    contacts = Contacts(HashStore())
    contacts.found(contacts.read(), "world", "mark-a", member("a", 0))
    contacts.add("world", "mark-b", member("b", 1))
    contacts.remove("world", "mark-a", records("a", "b", "invited")[1:])
    assert set(contacts.read().members) == {"mark-b"}  # one of them is enough
    contacts.remove("world", "mark-b", records("a", "b", "invited")[2:])
    assert set(contacts.read().members) == {"mark-invited"}


def test_each_group_on_a_store_has_a_number():
    contacts = Contacts(HashStore())
    assert [contacts.count_groups() for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("text", ["x", "[]", "{}", '{"world": "w", "members": [["m", "{}"]]}'])
def test_what_is_no_group_is_refused(text):
    store = HashStore()
    store.set("group", text)
    with pytest.raises(RemoteProtocolError, match="the store holds no"):
        Contacts(store).read()


def test_of_many_members_some_are_named_and_others_when_these_are_gone(monkeypatch):
    monkeypatch.setattr(contacts_module, "MOST_NAMED", 3)
    contacts = Contacts(HashStore())
    assert contacts.found(contacts.read(), "world", "m0", member("w0", 0))
    for n in range(1, 6):
        assert contacts.add("world", f"m{n}", member(f"w{n}", n))
    assert list(contacts.read().members) == ["m0", "m1", "m2"]
    assert not contacts.add("another world", "m6", member("w6", 6))
    records = [MemberRecord(member(f"w{n}", n), n, f"m{n}") for n in range(6)]
    records[:2] = [record.ended(MemberState.DIED, "killed") for record in records[:2]]
    contacts.update("world", records)
    assert list(contacts.read().members) == ["m2", "m3", "m4"]
    for mark in ("m2", "m3"):
        contacts.remove("world", mark, records[2:])
    assert list(contacts.read().members) == ["m4"]
    contacts.remove("world", "m4", [records[5]])
    assert list(contacts.read().members) == ["m5"]
