"""Two trainers on one parameter server: nobody's step breaks the other's backward pass."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn, optim

from lockstitch import autograd, rpc
from lockstitch.optim import DistributedOptimizer
from lockstitch.testing.cluster import LocalCluster

SERVER, TRAINERS = "server", ("trainer1", "trainer2")


class ParameterServer:
    """A model with hidden layers: their backward passes multiply by weights that were saved."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.model.append(nn.Linear(16, 1))
        for parameter in self.model.parameters():
            parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.model(batch)

    def parameters(self) -> list[rpc.RRef[torch.Tensor]]:
        return [rpc.RRef(parameter) for parameter in self.model.parameters()]

    def values(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


class Trainer:
    """One trainer's loop; it lives on a worker of its own."""

    went_forward = threading.Event()
    may_go_back = threading.Event()

    def __init__(self, server: rpc.RRef[ParameterServer], rate: float = 0.05) -> None:
        self._server = server
        self._optimizer = DistributedOptimizer(optim.SGD, server.rpc_sync().parameters(), lr=rate)

    def step(self, batch: torch.Tensor, *, pause: bool = False) -> float:
        """One training step, on request with a pause between the forward and the backward pass."""
        with autograd.context() as context_id:
            errors = self._server.rpc_sync().forward(batch) - batch.sum(dim=1, keepdim=True)
            loss = (errors**2).mean()
            if pause:
                Trainer.went_forward.set()
                assert Trainer.may_go_back.wait(60)
            autograd.backward(context_id, [loss])
            self._optimizer.step(context_id)
            return loss.item()

    def train(self, seed: int, steps: int) -> list[float]:
        return [self.step(batch) for batch in batches(seed, steps)]


def batches(seed: int, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(16, 4, generator=generator) for _ in range(count)]


@pytest.fixture
def server():
    Trainer.went_forward.clear()
    Trainer.may_go_back.clear()
    with LocalCluster((SERVER, *TRAINERS)) as cluster, cluster[SERVER].active():
        yield rpc.RRef(ParameterServer())
        Trainer.may_go_back.set()


@pytest.fixture
def trainers(server):
    return [rpc.remote(name, Trainer, (server,)) for name in TRAINERS]


def step_overtaken_by_another(slow: rpc.RRef[Trainer], quick: rpc.RRef[Trainer]) -> None:
    """`quick` makes a whole step between the forward and the backward pass of `slow`."""
    first, second = batches(0, 2)
    overtaken = slow.rpc_async().step(first, pause=True)
    assert Trainer.went_forward.wait(60)
    quick.rpc_sync().step(second)
    Trainer.may_go_back.set()
    overtaken.wait()


def test_a_backward_pass_survives_the_step_of_another_trainer(server, trainers) -> None:
    before = server.local_value().values()
    step_overtaken_by_another(*trainers)
    after = server.local_value().values()
    assert all(not torch.equal(b, a) for b, a in zip(before, after, strict=True))


def test_both_updates_arrive(server, trainers) -> None:
    """Into the gradient of the last bias no weight enters: it is the same however late it comes."""
    model = server.local_value().model
    before, expected_change = model[-1].bias.item(), 0.0
    for batch in batches(0, 2):
        errors = model(batch).detach() - batch.sum(dim=1, keepdim=True)
        expected_change -= 0.05 * (2 * errors).mean().item()

    step_overtaken_by_another(*trainers)

    assert model[-1].bias.item() - before == pytest.approx(expected_change, abs=1e-6)


def test_two_trainers_at_full_speed_learn_together(server) -> None:
    """Measured on the model itself, before and after: how the steps of the two interleave, and with
    it each one's losses on the way, is a matter of chance. The rate is so small that even a step
    whose gradient is as old as the training does no harm that would count."""
    trainers = [rpc.remote(name, Trainer, (server, 0.005)) for name in TRAINERS]
    model, (batch,) = server.local_value().model, batches(7, 1)

    def loss() -> float:
        with torch.no_grad():
            return ((model(batch) - batch.sum(dim=1, keepdim=True)) ** 2).mean().item()

    before = loss()
    rpc.wait_all([t.rpc_async().train(seed, 60) for seed, t in enumerate(trainers)])
    assert loss() < 0.2 * before
