"""All may go when nothing is under way anywhere; a dead or a busy worker is named."""

from __future__ import annotations

import threading

import pytest

from lockstitch import rpc
from lockstitch.errors import (
    CalledOffError,
    PeerDiedError,
    PeerLeftError,
    RpcError,
    RpcTimeoutError,
)
from lockstitch.rpc.barriers import Barriers
from lockstitch.rpc.quiescence import Quiescence
from lockstitch.runtime.outgoing import Outgoing
from lockstitch.runtime.worker import current_worker
from lockstitch.testing.clock import ManualClock
from lockstitch.testing.cluster import LocalCluster
from lockstitch.wire.messages import Brought
from tests.unit.rpc.programs import (
    ARRIVALS,
    AT_GATE,
    GATE,
    close_gate,
    on_all,
    pass_on,
    wait_at_gate,
)
from tests.unit.runtime.stage import wait_until


@pytest.fixture
def cluster():
    close_gate()
    ARRIVALS.clear()
    with LocalCluster(3) as cluster:
        yield cluster
        GATE.set()


def meet(timeout: float | None = 20.0) -> None:
    current_worker().service(Quiescence).wait_until_all_rest(timeout)


def test_workers_without_work_may_go_at_once_and_again(cluster) -> None:
    for _ in range(3):
        assert on_all(cluster, meet) == {"worker0": None, "worker1": None, "worker2": None}


def test_a_long_chain_of_calls_that_nobody_waits_for_is_waited_out(cluster) -> None:
    for start in cluster.names:
        cluster.run(start, pass_on, 20, cluster.names, start)
    on_all(cluster, meet)
    assert sorted(ARRIVALS) == cluster.names


def test_a_callback_that_calls_on_is_waited_out(cluster) -> None:
    def call_with_callback() -> None:
        future = rpc.rpc_async("worker1", pass_on, (0, [], "first"))
        future.then(lambda _: rpc.rpc_async("worker2", pass_on, (5, cluster.names, "second")))

    cluster.run(0, call_with_callback)
    on_all(cluster, meet)
    assert ARRIVALS == ["first", "second"]


def test_an_answer_whose_caller_was_struck_before_it_could_wait_keeps_nobody(cluster, monkeypatch):
    def struck(*_: object) -> None:
        raise KeyboardInterrupt

    def call() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Outgoing, "_await", struck)
            with pytest.raises(KeyboardInterrupt):
                rpc.rpc_sync("worker1", pass_on, (0, [], ""))

    cluster.run(0, call)
    assert set(on_all(cluster, lambda: meet(10.0)).values()) == {None}


def test_a_call_that_lasts_too_long_is_a_timeout_that_says_who_is_busy(cluster) -> None:
    cluster.run(0, rpc.rpc_async, "worker1", wait_at_gate)
    assert AT_GATE.wait(60)
    results = on_all(cluster, lambda: meet(0.2))
    assert all(isinstance(error, RpcTimeoutError) for error in results.values())
    assert "'worker1' had not come to rest" in str(results["worker1"])


def test_who_does_not_come_is_named_by_the_leader(cluster) -> None:
    with pytest.raises(RpcTimeoutError, match=r"Followers \['worker1', 'worker2'\] timed out"):
        cluster.run(0, meet, 0.2)


def test_who_has_not_called_shutdown_is_told_to_all_by_errors_that_programs_can_name(
    cluster,
) -> None:
    def meet_or_not() -> None:
        if current_worker().name != "worker2":
            meet(0.3)

    results = on_all(cluster, meet_or_not)
    late = cluster.run(2, lambda: caught_from(lambda: meet(0.3)))
    assert isinstance(results["worker0"], RpcTimeoutError)
    words = "'worker0' waits in shutdown for 'worker2', which has not called shutdown, or is still"
    for error in (results["worker1"], late):
        assert type(error) is CalledOffError
        assert error.reason == str(results["worker0"])
        assert "raised on another worker, which waits no longer" in str(error)
    assert all(words in str(each) for each in (results["worker0"], results["worker1"], late))


def caught_from(function):
    with pytest.raises(RpcError) as caught:
        function()
    return caught.value


def test_a_worker_that_dies_meanwhile_ends_the_waiting(cluster) -> None:
    cluster.run(0, rpc.rpc_sync, "worker2", pass_on, (0, [], ""))
    cluster.run(1, rpc.rpc_sync, "worker2", pass_on, (0, [], ""))

    def meet_or_die() -> None:
        if current_worker().name == "worker2":
            cluster.kill("worker2")
        else:
            meet()

    results = on_all(cluster, meet_or_die)
    assert isinstance(results["worker0"], PeerDiedError)
    assert "worker2" in str(results["worker0"])
    assert "was called off: worker 'worker2' died" in str(results["worker1"])


def test_a_death_deep_below_reaches_everybody_by_name() -> None:
    with LocalCluster(12) as deep:  # worker9 … worker11 stand below worker2

        def meet_or_die() -> None:
            if current_worker().name == "worker9":
                deep.kill("worker9")
            else:
                meet()

        results = on_all(deep, meet_or_die)
        del results["worker9"]
        assert all("'worker9' died" in str(error) for error in results.values()), results
        assert sum(isinstance(error, PeerDiedError) for error in results.values()) <= 5


def test_a_child_that_asked_again_and_went_before_its_parent_told_it_is_not_missed(monkeypatch):
    announce, barrier_ids = Barriers.announce, []

    def announce_late(barriers: Barriers, barrier_id: str, result: object) -> None:
        announce(barriers, barrier_id, result)
        if threading.current_thread() is leader and barrier_id not in barrier_ids:
            barrier_ids.append(barrier_id)
            if len(barrier_ids) == 2:  # the last: the leader is about to tell the others
                cluster[1].agent.send(cluster[0].id, Brought(barrier_id, "worker1", 0))
                assert went.wait(60)

    monkeypatch.setattr(Barriers, "announce", announce_late)

    def meet_and_go() -> None:
        meet()
        if threading.current_thread() is not leader:
            current_worker().close()

    monkeypatch.setattr(Barriers, "announce", announce_late)
    leader, went = threading.current_thread(), threading.Event()
    with LocalCluster(3) as cluster:
        cluster[0].agent.on_peer_lost(lambda *_: went.set())
        others = [threading.Thread(target=cluster.run, args=(n, meet_and_go)) for n in (1, 2)]
        for other in others:
            other.start()
        cluster.run(0, meet_and_go)
        for other in others:
            other.join(60)


@pytest.mark.parametrize("error", [PeerLeftError, PeerDiedError])
def test_what_who_has_left_said_before_is_waited_for_while_it_may_be_unread(error) -> None:
    clock = ManualClock()
    with LocalCluster(3, clock=clock) as cluster:
        cluster.run(1, rpc.rpc_sync, "worker0", pass_on, (0, [], ""), None, 0)
        quiescence = cluster[0].service(Quiescence)
        barriers = quiescence.barriers
        barrier = barriers.get(barriers.begin(quiescence.attendance()))
        quiescence._note_lost(cluster[1].id, error("worker1"))
        has_failed = barrier.ready
        for _ in range(3):
            clock.advance(0.5)
        assert has_failed.wait(60 if error is PeerDiedError else 0.2) == (error is PeerDiedError)
        cluster[1].close()
        wait_until(lambda: cluster[0].agent.peers.caller(cluster[1].id) is None)
        wait_until(lambda: clock.advance(0.5) or has_failed.is_set())
        assert barrier.failure is not None


@pytest.mark.slow  # questions and answers need their seconds on a busy machine
def test_the_leader_learns_who_is_missing_deep_below() -> None:
    with LocalCluster(12) as deep:
        absent = {"worker5", "worker8"}
        results = on_all(deep, lambda: current_worker().name in absent or meet(15.0))
        assert results["worker5"] is results["worker8"] is True
        assert "['worker5', 'worker8']" in str(results["worker0"])
