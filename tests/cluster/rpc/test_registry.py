"""A cluster with a registry: it does its work, and nothing for those who ask for more."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import RemoteError, SerializationError
from lockstitch.optim import DistributedOptimizer
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing import LocalCluster
from lockstitch.trust.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Layer:
    def __init__(self, size: int) -> None:
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def parameters(self) -> list[rpc.RRef[torch.Tensor]]:
        return [rpc.RRef(self.weight)]

    def _reset(self) -> None:
        raise AssertionError("it was called")


class FailingError(Exception):
    pass


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def not_for_peers() -> str:
    raise AssertionError("it was called")


def fail() -> None:
    raise FailingError("on purpose")


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    registry = Registry([Layer, double, fail, torch.optim.SGD])
    with LocalCluster(2, options=AgentOptions(registry=registry)) as cluster:
        yield cluster


def test_a_job_does_all_its_work_with_what_it_has_registered(cluster: LocalCluster) -> None:
    with cluster[0].active():
        assert torch.equal(rpc.rpc_sync("worker1", double, (torch.ones(3),)), 2 * torch.ones(3))
        layer = rpc.remote("worker1", Layer, (3,))
        (weight,) = layer.rpc_sync().parameters()
        optimizer = DistributedOptimizer(torch.optim.SGD, [weight], lr=1.0)
        with autograd.context() as context:
            loss = layer.rpc_sync().forward(torch.ones(3)).sum()
            autograd.backward(context, [loss])
            optimizer.step(context)
        assert torch.equal(weight.to_here(), torch.zeros(3))


def serves(cluster: LocalCluster) -> bool:
    with cluster[0].active():
        return bool(rpc.rpc_sync("worker1", double, (torch.ones(1),)).item() == 2)


def test_functions_that_are_not_registered_are_not_called(cluster: LocalCluster) -> None:
    with cluster[0].active():
        for function, args in ((not_for_peers, ()), (os.system, ("true",)), (torch.add, (1, 2))):
            with pytest.raises(SerializationError, match="is not registered on this worker"):
                rpc.rpc_sync("worker1", function, args)
        with pytest.raises(SerializationError, match="is not registered on this worker"):
            rpc.rpc_sync("worker1", functools.partial(double, torch.ones(1)))
        with pytest.raises(SerializationError, match="code does not travel"):
            rpc.rpc_sync("worker1", lambda: 1)
        with pytest.raises(SerializationError, match="is not registered"):
            rpc.remote("worker1", not_for_peers).to_here()
    assert serves(cluster)


class Gadget:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_gadget_is_refused_and_the_worker_goes_on_serving(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with cluster[0].active():
        with pytest.raises(SerializationError, match="posix:mkdir is not registered"):
            rpc.rpc_sync("worker1", double, (Gadget(tmp_path / "made"),))
        layer = rpc.remote("worker1", Layer, (3,))
        with pytest.raises(SerializationError, match="posix:mkdir is not registered"):
            layer.rpc_sync().forward([Gadget(tmp_path / "made")])
    assert not (tmp_path / "made").exists()
    assert serves(cluster)


def test_methods_that_are_not_public_are_not_called(cluster: LocalCluster) -> None:
    with cluster[0].active():
        layer = rpc.remote("worker1", Layer, (3,))
        tensor = rpc.remote("worker1", double, (torch.ones(1),))
        for call in (
            lambda: layer.rpc_sync()._reset(),
            lambda: tensor.rpc_sync().tolist(),
        ):
            with pytest.raises(SerializationError, match="may not be called"):
                call()
    assert serves(cluster)


def test_exceptions_that_are_not_registered_come_as_text(cluster: LocalCluster) -> None:
    with cluster[0].active(), pytest.raises(RemoteError, match="FailingError: on purpose"):
        rpc.rpc_sync("worker1", fail)
