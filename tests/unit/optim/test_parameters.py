"""References to the parameters of a module elsewhere, in one call."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from lockstitch import rpc
from lockstitch.nn import RemoteModule
from lockstitch.optim import DistributedOptimizer, named_parameters_of, parameters_of
from lockstitch.testing.cluster import LocalCluster


def tied() -> nn.Module:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    return nn.Sequential(first, second)


@pytest.fixture
def cluster():
    with LocalCluster(2) as cluster, cluster[0].active():
        yield cluster


def test_they_are_those_of_the_module_in_its_order_each_once(cluster) -> None:
    model = rpc.remote("worker1", tied)
    before = cluster.traffic()
    references = parameters_of(model)
    assert (cluster.traffic() - before).kinds["Call"] == 1
    assert [reference.owner_name() for reference in references] == ["worker1"] * 3
    assert [tuple(each.to_here().shape) for each in references] == [(2, 2), (2,), (2,)]
    names = [name for name, _ in named_parameters_of(model)]
    assert names == [name for name, _ in tied().named_parameters()]


def test_remote_modules_and_local_references_will_do(cluster) -> None:
    module = RemoteModule("worker1/cpu", nn.Linear, (2, 1))
    assert len(parameters_of(module)) == 2
    local = nn.Linear(1, 1)
    named = dict(named_parameters_of(rpc.RRef(local)))
    assert named["weight"].local_value() is local.weight
    optimizer = DistributedOptimizer(optim.SGD, named_parameters_of(module), lr=0.1)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


def test_other_things_are_refused(cluster) -> None:
    with pytest.raises(TypeError, match=r"not a Linear: .* say RRef\(module\)"):
        parameters_of(nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a Tensor has no parameters\(\)"):
        parameters_of(rpc.remote("worker1", torch.ones, (1,)))
