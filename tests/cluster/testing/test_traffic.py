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
        kinds = dict(cluster.traffic().kinds)
        kinds.pop("Cancel", None)  # follows the timeout, a moment later
        assert kinds == {"Hello": 1, "Welcome": 1, "Call": 1}
