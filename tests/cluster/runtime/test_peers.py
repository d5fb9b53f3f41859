"""Workers that die, leave, refuse or begin again."""

from __future__ import annotations

import pytest

from lockstitch.errors import NotInitializedError, PeerDiedError, RpcError
from lockstitch.ids import WorkerId
from lockstitch.runtime.agent import AgentOptions
from lockstitch.runtime.worker import current_worker
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.trust import Secret
from lockstitch.wire.messages import Call, Reply
from tests.cluster.runtime.programs import Gate, call, call_async, here, wait_at_gate
from tests.unit.runtime.stage import Background, wait_until


def test_peer_that_dies_of_a_call() -> None:
    with LocalCluster(2, faults=Faults().kill("worker1", after=Call)) as cluster:
        with pytest.raises(PeerDiedError):
            call(cluster[0], 1, wait_at_gate, timeout=0)
        Gate.opened.set()


def test_peer_that_dies_after_its_answer_has_answered() -> None:
    with LocalCluster(2, faults=Faults().kill("worker1", after=Reply)) as cluster:
        assert call(cluster[0], 1, here)[0] == "worker1"
        with pytest.raises(PeerDiedError):
            call(cluster[0], 1, here)


def test_loss_is_told_to_whoever_asked_once() -> None:
    with LocalCluster(3) as cluster:
        lost: list[str] = []
        cluster[0].agent.on_peer_lost(lambda worker, error: lost.append(error.worker))
        for to in (1, 2):
            call(cluster[0], to, here)
            call(cluster[to], 0, here)
        cluster.kill("worker2")
        wait_until(lambda: lost)
        with pytest.raises(PeerDiedError):
            call(cluster[0], 2, here)
        assert call(cluster[0], 1, here)[0] == "worker1"
        assert lost == ["worker2"]


def test_peer_that_leaves_in_good_order_is_gone_at_once(cluster: LocalCluster) -> None:
    call(cluster[1], 0, here)
    future = call_async(cluster[0], 1, wait_at_gate, timeout=0)
    Gate.await_entries()
    leaving = Background(cluster[1].close)
    with pytest.raises(PeerDiedError, match="'worker1' has left"):
        Background(future.wait).result()
    Gate.opened.set()
    assert leaving.result() == []
    with pytest.raises(PeerDiedError):
        call(cluster[0], 1, here)


def test_closed_worker_says_so_and_closing_twice_is_harmless() -> None:
    with LocalCluster(2) as cluster:
        me = cluster[0]
        call(me, 1, here)
        me.close()
        assert me.close() == []
        with pytest.raises((NotInitializedError, PeerDiedError), match="shut down"):
            me.agent.outgoing.call(WorkerId(1, 0), here)


def test_two_clusters_at_once_do_not_mix() -> None:
    with LocalCluster(["a", "b"]) as one, LocalCluster(["c", "d"]) as other:
        assert call(one[0], 1, here)[0] == "b"
        assert call(other[0], 1, here)[0] == "d"
        with pytest.raises(RpcError, match="could not find"):
            call(one[0], "d", here)
        with one[0].active():
            assert current_worker() is one[0]
            with other[1].active():
                assert current_worker() is other[1]
            assert current_worker() is one[0]


def test_caller_that_does_not_fit_is_refused_with_the_reason(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cluster[1].agent.pending_handshakes, "judge", lambda _: "it runs Python 2.7.18"
    )
    with pytest.raises(
        RpcError,
        match=r"'worker1' refused the connection of worker 'worker0': it runs Python 2\.7\.18",
    ):
        call(cluster[0], 1, here)
    wait_until(cluster[0].agent.is_at_rest)
    assert cluster[1].agent.statistics().strangers == {"refused": 1}


def test_workers_with_different_secrets_refuse_each_other() -> None:
    secrets = [AgentOptions(secret=Secret.make()) for _ in range(2)]
    with LocalCluster(2, options=secrets[0]) as cluster:
        cluster[1].agent.core.options = secrets[1]
        with pytest.raises(RpcError, match="given different secrets"):
            call(cluster[0], 1, here)
        assert cluster[1].agent.statistics().strangers == {"wrong proof": 1}
    with LocalCluster(2, options=secrets[0]) as cluster:
        assert call(cluster[0], 1, here)[0] == "worker1"
        assert cluster.traffic().kinds["Proof"] == 1


def test_partition_is_a_silence_that_times_out_and_heals() -> None:
    with LocalCluster(2) as cluster:
        call(cluster[0], 1, here)
        with cluster.partition("worker0", "worker1"), pytest.raises(TimeoutError):
            call(cluster[0], 1, here, timeout=0.05)
        assert call(cluster[0], 1, here)[0] == "worker1"
