"""A model is cut into stages of about equal cost, and trains as before."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from lockstitch import autograd, rpc
from lockstitch.nn import Pipeline, split
from lockstitch.testing.cluster import LocalCluster
from tests.cluster.nn.pipelining.pipelines import gradients_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(["driver", "a", "b"]) as running, running["driver"].active():
        yield running


def names_of(rref: rpc.RRef[nn.Module]) -> list[str]:
    return [name for name, _ in rref.local_value().named_parameters()]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(4)])
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("by", ["time", "memory", "parameters"])
@pytest.mark.parametrize("workers", [["driver", "a", "b"], ["a", "b", "a", "b"]])
def test_a_traced_model_trains_as_in_one_process(by, workers):
    model = Model().double()
    twin = copy.deepcopy(model)
    x, y = torch.randn(8, 4).double(), torch.randn(8, 2).double()
    stages = split(model, workers, x[:2], by)
    pipeline = Pipeline(stages, chunks=4)
    with autograd.context() as context_id:
        pipeline.step(context_id, x, y, nn.functional.mse_loss)
        named = {}
        for stage in stages:
            rref = stage.get_module_rref()
            names = rpc.rpc_sync(rref.owner(), names_of, (rref,))
            found = rpc.rpc_sync(rref.owner(), gradients_of, (rref, context_id))
            named.update(zip(names, found, strict=True))
    nn.functional.mse_loss(twin(x), y).backward()
    assert set(named) == {name for name, _ in twin.named_parameters()}
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(named[name], parameter.grad, rtol=1e-12, atol=1e-12)


def test_parameters_are_balanced():
    wide = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 100))
    stages = split(wide, ["a", "b"], torch.ones(1, 10), by="parameters")
    assert [len(stage.remote_parameters()) for stage in stages] == [4, 2]


def test_a_stage_of_this_worker_has_the_models_own_parameters():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    first, _ = split(model, ["driver", "a"], torch.ones(1, 2))
    assert first.remote_parameters()[0].local_value() is model[0].weight


def test_modes_go_along():
    model = nn.Sequential(nn.Dropout(), nn.Dropout()).eval()
    pipeline = Pipeline(split(model, ["a", "b"], torch.ones(2, 3)), chunks=2)
    assert pipeline(torch.ones(4, 3)).tolist() == torch.ones(4, 3).tolist()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mid, self.head = nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.mid(self.embed(x)))


def test_shared_parameters_stay_shared_on_one_worker_and_are_refused_on_two():
    x = torch.tensor([[0, 1], [2, 3]])
    with pytest.raises(
        ValueError, match=r"stages 0 and 2 share a parameter \('embed.weight', 'hea"
    ):
        split(Tied(), ["a", "b", "driver"], x)
    stages = split(Tied(), ["a", "b", "a"], x)
    assert len(Pipeline(stages, chunks=3).remote_parameters()) == 4


class WritesToView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        y = self.linear(x)
        z = y.view(-1)
        y.mul_(2)
        return z + 1, y


def test_writes_that_another_stage_would_see_are_refused():
    with pytest.raises(ValueError, match="WritesToView give other results than it"):
        split(WritesToView(), ["driver", "a", "b", "a"], torch.ones(1, 2))


def test_bad_arguments_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(ValueError, match="has 2 parts in which it can be cut, and there are 3"):
        split(model, ["driver", "a", "b"], torch.ones(1, 2))
    with pytest.raises(ValueError, match="by is one of 'time', 'memory', 'parameters', not 'size'"):
        split(model, ["a", "b"], torch.ones(1, 2), by="size")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a list of names"):
        split(model, "a", torch.ones(1, 2))
    with pytest.raises(TypeError, match="module is a module"):
        split(len, ["a"], torch.ones(1, 2))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        split(model, ["a", "b"], torch.ones(1, 3))
