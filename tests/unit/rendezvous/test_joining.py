"""The door to a static group: what may come in, and that the two sorts of group do not mix."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from lockstitch.ids import WorkerInfo
from lockstitch.rendezvous import Member, host_identity, join
from lockstitch.rendezvous.contacts import Contacts

MIXED = "RPC group mixes statically and dynamically initialized members which is not supported."


def test_a_worker_publishes_where_it_listens():
    roster = join(HashStore(), "w0", 0, 1, ["unix:/x", "tcp:h:1"])
    (member,) = roster.members()
    assert member.info == roster.me
    assert member.addresses == ("unix:/x", "tcp:h:1")
    assert member.host == host_identity()
    assert "w0" in repr(roster)


def test_a_static_worker_does_not_join_a_dynamic_group():
    store = HashStore()
    contacts = Contacts(store)
    assert contacts.found(contacts.read(), "world", "mark", Member(WorkerInfo("a", 0), (), ""))
    with pytest.raises(RuntimeError, match=MIXED):
        join(store, "w1", 0, 1, [])
    contacts.remove("world", "mark")
    assert join(store, "w1", 0, 1, []).me.id == 0


def test_a_dynamic_worker_sees_a_static_group_until_that_is_over():
    store = HashStore()
    static = join(store, "w0", 0, 1, [])
    with pytest.raises(RuntimeError, match=MIXED):
        Contacts(store).check_is_not_static()
    static.leave()
    Contacts(store).check_is_not_static()


def test_a_failed_join_counts_for_nothing():
    store = HashStore()
    with pytest.raises(RuntimeError, match="did not come"):
        join(store, "w0", 0, 2, [], timeout_seconds=0.01)
    Contacts(store).check_is_not_static()


@pytest.mark.parametrize("name", ["", "two words", "slash/ed", "ü", "x" * 128])
def test_an_impossible_name_is_refused(name):
    with pytest.raises(RuntimeError, match="Worker name must match"):
        join(HashStore(), name, 0, 1, [])


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_of_the_world_is_refused(rank):
    with pytest.raises(ValueError, match="does not lie within world_size 2"):
        join(HashStore(), "w0", rank, 2, [])


def test_store_of_static_groups_alone_is_not_looked_at_for_others():
    store = HashStore()
    Contacts(store).found(Contacts(store).read(), "g", "mark", Member(WorkerInfo("x", 0), (), ""))
    roster = join(store, "a", 0, 1, ["unix:/a"], 30, is_shared=False)
    roster.leave()
    assert not store.check(["members/static"])
