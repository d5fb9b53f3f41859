"""A worker starts on the roads that its options allow, and finds its peers by the roster."""

from __future__ import annotations

import pytest

from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rendezvous import Member, host_identity
from lockstitch.rpc.options import TensorPipeRpcBackendOptions
from lockstitch.rpc.startup import (
    Membership,
    RosterDirectory,
    check_devices,
    join_seconds,
    make_segments,
    make_transport,
)


class FakeRoster:
    """Two members, of which one cannot be reached."""

    def __init__(self) -> None:
        self.me = WorkerInfo("a", 0)
        self.known = [
            Member(WorkerInfo("a", 0), ("unix:/a",), host_identity()),
            Member(WorkerInfo("b", 1), ("unix:/b",), host_identity()),
            Member(WorkerInfo("far", 2), ("unix:/far",), "another host"),
        ]
        self.forgotten: list[str] = []
        self.left = 0

    def find(self, who: str | int | WorkerId) -> Member | None:
        for member in self.known:
            if who in (member.info.name, member.info.id) or who == member.id:
                return member
        return None

    def members(self) -> list[Member]:
        return self.known

    def forget(self, member: Member) -> None:
        self.forgotten.append(member.info.name)

    def leave(self) -> None:
        self.left += 1
        if self.left > 1:
            raise RuntimeError("the store is gone")


class FakeTransport:
    def connect(self, address: str, timeout_seconds: float) -> str:
        if address == "unix:/b":
            raise ConnectionRefusedError(address)
        return f"connection to {address}"


def test_members_come_from_the_roster() -> None:
    directory = RosterDirectory(FakeRoster(), FakeTransport())
    assert directory.find("b") == directory.find(1) == directory.find(WorkerId(1, 0))
    assert directory.find("c") is None
    assert [info.name for info in directory.members()] == ["a", "b", "far"]


def test_connections_go_to_the_address_that_can_be_reached() -> None:
    directory = RosterDirectory(FakeRoster(), FakeTransport())
    assert directory.connect(WorkerInfo("a", 0), 1) == "connection to unix:/a"
    with pytest.raises(ConnectionError, match="from another host"):
        directory.connect(WorkerInfo("far", 2), 1)


def test_who_cannot_be_reached_is_looked_up_anew_next_time() -> None:
    roster = FakeRoster()
    with pytest.raises(ConnectionRefusedError):
        RosterDirectory(roster, FakeTransport()).connect(WorkerInfo("b", 1), 1)
    assert roster.forgotten == ["b"]


def test_who_has_left_cannot_be_connected_to() -> None:
    with pytest.raises(ConnectionError, match="'c' is not in the group any more"):
        RosterDirectory(FakeRoster(), FakeTransport()).connect(WorkerInfo("c", 3), 1)


def test_leaving_forgives_a_store_that_is_gone() -> None:
    roster = FakeRoster()
    membership = Membership(is_static=True, roster=roster)
    membership.leave()
    membership.leave()
    assert roster.left == 2
    Membership(is_static=False).leave()


@pytest.mark.parametrize(("timeout", "seconds"), [(0.5, 60.0), (100.0, 100.0), (0.0, 86400.0)])
def test_the_others_are_waited_for_at_least_a_minute(timeout, seconds) -> None:
    assert join_seconds(TensorPipeRpcBackendOptions(rpc_timeout=timeout)) == seconds


@pytest.mark.parametrize("asked", [{"devices": [0]}, {"device_maps": {"b": {0: 1}}}])
def test_accelerators_are_refused_and_not_ignored(asked) -> None:
    check_devices(TensorPipeRpcBackendOptions(device_maps={"b": {"cpu": "cpu"}}))
    with pytest.raises(NotImplementedError, match="move them to the CPU first"):
        check_devices(TensorPipeRpcBackendOptions(**asked))


def test_tcp_is_opened_only_where_somebody_answers_for_it() -> None:
    with pytest.raises(ValueError, match="`lockstitch secret`.*insecure=True"):
        make_transport(TensorPipeRpcBackendOptions(address="127.0.0.1"))
    for options in (
        TensorPipeRpcBackendOptions(),
        TensorPipeRpcBackendOptions(address="127.0.0.1", secret="5e" * 32),
        TensorPipeRpcBackendOptions(address="127.0.0.1", insecure=True),
    ):
        transport = make_transport(options)
        listeners = transport.listen_on_each()
        kinds = [listener.address.partition(":")[0] for listener in listeners]
        assert kinds == ["unix", "tcp"][: len(kinds)]
        assert len(kinds) == (1 if options.address is None else 2)
        for listener in listeners:
            listener.close()
        transport.close()


def test_roads_that_are_not_named_are_not_opened() -> None:
    options = TensorPipeRpcBackendOptions(transports=["tcp"], address="127.0.0.1", insecure=True)
    transport = make_transport(options)
    (listener,) = transport.listen_on_each()
    assert listener.address.startswith("tcp:")
    listener.close()
    transport.close()
    with pytest.raises(ValueError, match="nobody can reach this worker"):
        make_transport(TensorPipeRpcBackendOptions(transports=["tcp", "segments"]))


def test_shared_memory_is_lent_only_where_it_may_be() -> None:
    assert make_segments(TensorPipeRpcBackendOptions(segment_pool_bytes=1 << 20)) is not None
    assert make_segments(TensorPipeRpcBackendOptions(segment_pool_bytes=0)) is None
    assert make_segments(TensorPipeRpcBackendOptions(transports=["unix"])) is None
