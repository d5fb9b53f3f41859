"""Workers find each other through a store that strangers write into, or not at all; never them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import HashStore

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import WorkerInfo
from lockstitch.rendezvous import Member
from lockstitch.rendezvous.contacts import Contacts
from lockstitch.rendezvous.sealed_store import SealedStore, sealed_by
from lockstitch.trust import Secret

SECRET = Secret(bytes(range(32)))


def test_values_come_back_as_they_were_written() -> None:
    store = SealedStore(HashStore(), SECRET)
    store.set("a", "one")
    store.set("b", b"two")
    assert (store.get("a"), store.multi_get(["a", "b"])) == (b"one", [b"one", b"two"])
    assert store.check(["a", "b"])
    assert not store.check(["c"])
    store.wait(["a"], timedelta(seconds=1))
    assert store.add("n", 2) == 2
    assert store.delete_key("a")
    assert not store.check(["a"])


def test_claims_are_made_once_as_in_any_store() -> None:
    store = SealedStore(HashStore(), SECRET)
    assert store.compare_set("rank", "", "mine") == b"mine"
    assert store.compare_set("rank", "", "theirs") == b"mine"
    assert store.compare_set("rank", "mine", "") == b""
    assert store.compare_set("rank", "", "theirs") == b"theirs"


def test_what_a_stranger_has_written_is_refused() -> None:
    bare = HashStore()
    store = SealedStore(bare, SECRET)
    store.set("a", "one")
    bare.set("b", bare.get("a"))  # a true value in another place
    bare.set("c", bytes(bare.get("a")).decode()[:-1] + "E")
    bare.set("d", '{"addresses": ["tcp:198.51.100.7:1"]}')
    SealedStore(bare, Secret.make()).set("e", "one")
    for key in "bcde":
        with pytest.raises(RemoteProtocolError, match=f"'{key}' was not written by a worker"):
            store.get(key)
        with pytest.raises(RemoteProtocolError):
            store.multi_get(["a", key])
    bare.set("rank", "claimed")
    with pytest.raises(RemoteProtocolError):
        store.compare_set("rank", "", "mine")


def test_no_secret_shows() -> None:
    bare = HashStore()
    assert sealed_by(None, bare) is bare
    store = sealed_by(SECRET, bare)
    assert isinstance(store, SealedStore)
    assert SECRET.text()[:16] not in repr(store) + repr(vars(store))


def test_poisoned_store_sends_no_worker_to_a_stranger() -> None:
    bare = HashStore()
    one, two = (Contacts(sealed_by(SECRET, bare)) for _ in range(2))
    member = Member(WorkerInfo("one", 0), ("unix:/one",), "host")
    assert one.found(one.read(), "world", "mark", member)
    assert two.add("world", "other", Member(WorkerInfo("two", 1), ("unix:/two",), "host"))
    assert two.read().members["mark"] == member
    bare.set("group", bytes(bare.get("group")).replace(b"unix:/two", b"unix:/bad"))
    with pytest.raises(RemoteProtocolError, match="'group' was not written"):
        one.read()
