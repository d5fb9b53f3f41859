"""A step in which connections break at any of its messages ends in the right gradients, or in an
error that names a worker; and the same workers go on."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lockstitch import autograd, rpc
from lockstitch.nn import Pipeline
from lockstitch.nn.pipelining.inbox import Inboxes
from tests.cluster.breaks import WAYS, World, moments_of, run_broken
from tests.cluster.nn.pipelining.pipelines import gradients_of, keep


class Gives(nn.Linear):
    def forward(self, x):
        return super().forward(x), rpc.RRef(x * 2)


class HandsOn(nn.Linear):
    def forward(self, x, skip):
        return super().forward(x), skip


class Takes(nn.Linear):
    def forward(self, x, skip):
        return super().forward(x) + skip.to_here()


def make_stages() -> list[nn.Module]:
    torch.manual_seed(3)
    return [Gives(2, 2), HandsOn(2, 2), Takes(2, 2)]


BATCH = torch.arange(12.0).view(6, 2)
TARGET = torch.ones(6, 2)


def step(world: World) -> Any:
    """The gradients of a step over three stages, one of which is the driver's own."""
    with world.cluster["worker0"].active():
        modules = copy.deepcopy(make_stages())
        stages: list[Any] = [modules[0]]
        stages += rpc.rpc_sync("worker1", keep, (modules[1:2],))
        stages += rpc.rpc_sync("worker2", keep, (modules[2:],))
        pipeline = Pipeline(stages, chunks=3)
        world.script.watch()
        with autograd.context() as context_id:
            pipeline.step(context_id, BATCH, TARGET, nn.functional.mse_loss)
            world.script.is_watching = False
            return [
                rpc.rpc_sync(each.owner(), gradients_of, (each, context_id))
                for each in pipeline._team.references
            ]


def check(found: Any) -> None:
    modules = make_stages()
    x = BATCH
    for part in x.split(2):
        hidden = modules[1].forward(nn.Linear.forward(modules[0], part), None)[0]
        output = nn.Linear.forward(modules[2], hidden) + part * 2
        loss = nn.functional.mse_loss(output, TARGET[:2]) / 3
        loss.backward()
    expected = [[each.grad for each in module.parameters()] for module in modules]
    torch.testing.assert_close(found, expected)


def is_clean(world: World) -> bool:
    return not any(len(Inboxes.of(worker)) for worker in world.cluster)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_connections_may_break_at_any_message_of_a_step():
    moments = moments_of(step, check)
    assert len(moments) > 12
    for moment in moments:
        for way in WAYS:
            run_broken(step, check, moment, way, is_clean)
