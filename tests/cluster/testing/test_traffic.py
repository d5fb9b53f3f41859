"""Every frame is counted once, lost ones too, and two counts have a difference."""

from __future__ import annotations

import pytest

from lockstitch import rpc
from lockstitch.errors import RpcTimeoutError
from lockstitch.testing import Faults, LocalCluster, Traffic
from lockstitch.wire.messages import Call


def nothing() -> None:
    pass


def test_a_call_is_a_message_there_and_one_back() -> None:
    with LocalCluster(3) as cluster:
        assert cluster.traffic() == Traffic()
        cluster.run(0, rpc.rpc_sync, "worker1", nothing)
        first = cluster.traffic()
        assert first.kinds == {"Hello": 1, "Welcome": 1, "Call": 1, "Reply": 1}
        assert first.messages == 4
        assert first.connections == 1
        assert first.ends == {"worker0": 1, "worker1": 1}

        cluster.run(0, rpc.rpc_sync, "worker1", nothing)
        second = cluster.traffic() - first
        assert second.kinds == {"Call": 1, "Reply": 1}
        assert second.senders == {"worker0": 1, "worker1": 1}
        assert second.connections == 0
        assert 0 < second.bytes < first.bytes


def test_what_is_lost_was_sent_all_the_same() -> None:
    with LocalCluster(2, faults=Faults().drop(Call)) as cluster:
        with pytest.raises(RpcTimeoutError):
            cluster.run(0, rpc.rpc_sync, "worker1", nothing, timeout=0.1)
        kinds = cluster.traffic().kinds
        assert kinds["Call"] == 1
        assert "Reply" not in kinds


def relay(*rest: str) -> None:
    """Each calls the next one."""
    if rest:
        rpc.rpc_sync(rest[0], relay, args=rest[1:])


def call_each(*names: str) -> None:
    for name in names:
        rpc.rpc_sync(name, nothing)


def test_depth_is_how_many_messages_wait_for_each_other() -> None:
    others = [f"worker{rank}" for rank in range(1, 6)]
    with LocalCluster(6) as cluster:
        cluster.run(0, relay, *others)
        # A call is four steps, greetings and all; the answers come back one after the other.
        assert cluster.traffic().depth == 3 * 5 + 5
    with LocalCluster(6) as cluster:
        cluster.run(0, call_each, *others)
        assert cluster.traffic().depth == 4 * 5
    with LocalCluster(6) as cluster:
        for rank in (0, 2, 4):
            cluster.run(rank, call_each, others[rank])  # these have nothing to do with each other
        assert cluster.traffic().depth == 4
        cluster.run(1, call_each, "worker0")
        assert (cluster.traffic() - cluster.traffic()).depth == 3 + 4  # it has read three


def test_sizes_add_up_and_kinds_can_be_left_out() -> None:
    with LocalCluster(2) as cluster:
        cluster.run(0, rpc.rpc_sync, "worker1", nothing)
        sent = cluster.traffic()
    assert sum(sent.sizes.values()) == sent.bytes
    calls = sent.without("Hello", "Welcome")
    assert calls.kinds == {"Call": 1, "Reply": 1}
    assert calls.bytes == sent.sizes["Call"] + sent.sizes["Reply"]
    assert (sent + calls).messages == 6
