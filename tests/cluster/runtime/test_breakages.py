"""Connections that break while both workers live."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.errors import ConnectionLostError, PeerDiedError
from lockstitch.rref.service import ReferenceService
from tests.cluster.runtime.programs import Gate, call, call_async, here, wait_at_gate
from tests.unit.runtime.stage import Background, wait_until

if TYPE_CHECKING:
    from lockstitch.testing.cluster import LocalCluster


def test_calls_without_an_answer_raise_and_work_goes_on(cluster: LocalCluster) -> None:
    waiter = Background(lambda: call(cluster[0], 1, wait_at_gate, timeout=0))
    future = call_async(cluster[0], 1, wait_at_gate, timeout=0)
    Gate.await_entries(2)
    lost: list[object] = []
    for worker in cluster:
        worker.agent.on_peer_lost(lambda *event: lost.append(event))
    cluster.reset("worker0", "worker1")
    for result in (waiter.result, Background(future.wait).result):
        with pytest.raises(ConnectionLostError, match="'worker1' broke before the answer came"):
            result()
    Gate.opened.set()
    assert call(cluster[0], 1, here)[0] == "worker1"
    assert call(cluster[1], 0, here)[0] == "worker0"
    assert lost == []


def test_one_who_only_called_us_is_found_to_live(cluster: LocalCluster) -> None:
    assert call(cluster[1], 0, here)[0] == "worker0"
    told: list[object] = []
    cluster[0].agent.on_connection_lost(lambda worker, _error: told.append(worker))
    cluster.reset("worker0", "worker1")
    wait_until(lambda: told == [cluster[1].id])  # it was called back, or has called anew
    assert not cluster[0].agent.is_lost(cluster[1].id)
    assert call(cluster[1], 0, here)[0] == "worker0"
    assert call(cluster[0], 1, here)[0] == "worker1"


def test_one_who_only_called_us_is_found_to_be_dead(cluster: LocalCluster) -> None:
    assert call(cluster[1], 0, here)[0] == "worker0"
    cluster.kill("worker1")
    wait_until(lambda: cluster[0].agent.is_lost(cluster[1].id))
    with pytest.raises(PeerDiedError, match="it closed the connection"):
        call(cluster[0], 1, here)


def test_one_that_breaks_again_while_it_is_made_anew_is_no_death(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = cluster[0].agent
    with cluster[0].active():
        assert rpc.rpc_sync("worker1", torch.add, (1, 2)) == 3
    directory, made = agent.peers._directory, []
    connect = directory.connect

    def connect_and_break(peer, timeout_seconds):
        made.append(connect(peer, timeout_seconds))
        if len(made) == 1:
            made[0].close()
        return made[-1]

    monkeypatch.setattr(directory, "connect", connect_and_break)
    cluster.reset("worker0", "worker1")
    wait_until(lambda: len(made) == 2)
    wait_until(lambda: not agent.peers.breakages.channels())
    assert not agent.is_lost(cluster[1].id)
    with cluster[0].active():
        assert rpc.rpc_sync("worker1", torch.add, (1, 2)) == 3


def test_references_survive(cluster: LocalCluster) -> None:
    with cluster[0].active():
        held = rpc.remote("worker1", torch.ones, (3,))
        assert held.to_here().sum() == 3
        agent = cluster[0].agent
        broken = agent.peers.channel(cluster[1].id)
        cluster.reset("worker0", "worker1")
        wait_until(lambda: broken.error is not None and agent.is_at_rest())
        assert held.to_here().sum() == 3
        del held
    owner = cluster[1].service(ReferenceService)
    wait_until(lambda: owner.statistics().owned == 0)


class Slow(torch.autograd.Function):
    """Holds the backward pass up on its worker until the gate opens."""

    entered = threading.Event()
    opened = threading.Event()

    @staticmethod
    def forward(_ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(_ctx, gradient):
        Slow.entered.set()
        Slow.opened.wait(60)
        return gradient


def slowly(tensor: torch.Tensor) -> torch.Tensor:
    return Slow.apply(tensor)


def test_a_backward_pass_fails_and_does_not_wait_for_what_was_lost(cluster: LocalCluster) -> None:
    Slow.entered.clear()
    Slow.opened.clear()

    def train() -> None:
        with cluster[0].active(), dist_autograd.context() as context:
            leaf = torch.ones(3, requires_grad=True)
            loss = rpc.rpc_sync("worker1", slowly, (leaf,)).sum()
            dist_autograd.backward(context, [loss])

    training = Background(train)
    assert Slow.entered.wait(10)
    cluster.reset("worker0", "worker1")
    with pytest.raises(ConnectionLostError):
        training.result()
    Slow.opened.set()
    wait_until(lambda: all(worker.agent.is_at_rest() for worker in cluster))
