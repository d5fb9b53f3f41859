from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import DistStoreError

from lockstitch.launcher_link.messages import StoreRequest
from lockstitch.launcher_link.process import JOB
from lockstitch.launcher_link.values import Values
from lockstitch.rendezvous import sealed_by
from lockstitch.rendezvous.contacts import Contacts
from lockstitch.rendezvous.launcher_store import LauncherStore
from lockstitch.rendezvous.store import open_store
from lockstitch.trust import Secret


class Link:
    """A link whose other end is right here."""

    def __init__(self) -> None:
        self.values = Values()

    def ask_store(self, operation, key, value="", expected=""):
        return self.values.answer(StoreRequest(0, operation, key, value, expected)).value


@pytest.fixture
def store():
    return LauncherStore(Link(), 0.2)


def test_any_bytes_come_back(store):
    everything = bytes(range(256))
    store.set("k", everything)
    assert store.get("k") == everything
    assert store.clone().multi_get(["k", "k"]) == [everything, everything]


def test_one_of_two_who_replace_the_same_value_comes_first(store):
    assert store.compare_set("k", "", "mine") == b"mine"
    assert store.compare_set("k", "", "yours") == b"mine"


def test_counters_count(store):
    assert [store.add("n", 1), store.add("n", 2)] == [1, 3]
    assert store.check(["n"])
    assert store.delete_key("n")
    assert not store.delete_key("n")


def test_what_nobody_sets_is_named_when_the_time_is_over(store):
    store.set("there", "")
    with pytest.raises(DistStoreError, match=r"nobody has set \['missing'\] within 0\.1 s"):
        store.wait(["there", "missing"], timedelta(seconds=0.1))
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(DistStoreError, match=r"within 0\.05 s"):
        store.get("missing")


def test_a_group_finds_its_members_in_it_sealed(store):
    contacts = Contacts(sealed_by(Secret.make(), store))
    assert contacts.read().group_id == ""
    assert contacts.count_groups() == 0
    contacts.check_is_not_static()


def test_the_launchers_store_is_taken_unless_the_program_has_named_another(monkeypatch):
    link = Link()
    monkeypatch.setattr(JOB, "client", lambda: link)
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCKSTITCH_STORE"):
        monkeypatch.delenv(name, raising=False)
    opened = open_store("env://", -1, None, 1.0)
    assert isinstance(opened, LauncherStore)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(ValueError, match="RANK expected"):
        open_store("env://", -1, None, 1.0)
