"""A worker finds its peers by the roster of its group."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rendezvous import Member, StaticRoster, host_identity
from lockstitch.rendezvous.roster import Table
from lockstitch.rpc.admission import Invitation, JoinRequest
from lockstitch.rpc.joining import RosterDirectory, join_static_group, kind_of

ROSTER = StaticRoster(
    WorkerInfo("a", 0),
    Table(
        [
            Member(WorkerInfo("a", 0), ("unix:/a",), host_identity()),
            Member(WorkerInfo("far", 2), ("unix:/far",), "another host"),
        ]
    ),
    lambda: None,
)


class FakeTransport:
    def connect(self, address: str, timeout_seconds: float) -> str:
        return f"connection to {address}"


def test_members_come_from_the_roster() -> None:
    directory = RosterDirectory(ROSTER, FakeTransport())
    assert directory.find("a") == directory.find(0) == directory.find(WorkerId(0, 0))
    assert directory.find("c") is None
    assert [info.name for info in directory.members()] == ["a", "far"]


def test_connections_go_to_the_address_that_can_be_reached() -> None:
    directory = RosterDirectory(ROSTER, FakeTransport())
    assert directory.connect(WorkerInfo("a", 0), 1) == "connection to unix:/a"
    with pytest.raises(ConnectionError, match="from another host"):
        directory.connect(WorkerInfo("far", 2), 1)
    with pytest.raises(ConnectionError, match="'c' is not in the group"):
        directory.connect(WorkerInfo("c", 3), 1)
    places = [directory.elsewhere(WorkerId(rank, 0)) for rank in (0, 2, 3)]
    assert places == ["", ", on another host", ""]


def test_a_static_place_comes_from_a_meeting_and_not_from_an_invitation() -> None:
    join_request = JoinRequest("a", 0, ("unix:/a",), host_identity())
    place = join_static_group(HashStore(), join_request, 1, FakeTransport(), 60)
    assert place.me == WorkerInfo("a", 0)
    assert place.directory.find("a") == place.me
    with pytest.raises(ValueError, match="it has no world_size"):
        join_static_group(Invitation("unix:/b"), join_request, 2, FakeTransport(), 60)


def test_a_group_whose_workers_cannot_reach_each_other_is_refused_on_all() -> None:
    store = HashStore()
    addresses = ("unix:/far",)
    away = {"host_name": "beta", "kind": kind_of(addresses, "")}
    far = Member(WorkerInfo("far", 1), addresses, "another host", **away)
    store.set("meetings/1", "1")
    store.set("meeting/0/1", far.encode())
    store.set("meeting/0/refused/1", "")
    join_request = JoinRequest("a", 0, ("unix:/a", "tcp:10.0.0.1:80"), host_identity())
    with pytest.raises(RuntimeError, match=r"worker 'far' on host beta .*LOCKSTITCH_SECRET_FILE"):
        join_static_group(store, join_request, 2, FakeTransport(), 60)
    assert store.check(["meeting/0/refused/0"])
