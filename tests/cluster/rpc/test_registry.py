"""A cluster with a registry: it does its work, and nothing for those who ask for more."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import numpy
import pytest
import torch

import lockstitch.nn
from lockstitch import autograd, rpc
from lockstitch.errors import RemoteError, SerializationError
from lockstitch.nn.api import remote_module
from lockstitch.optim import DistributedOptimizer, GradScaler, clip_grad_norm_
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


def test_the_whole_of_a_training_loop_needs_nothing_more(cluster: LocalCluster) -> None:
    with cluster[0].active():
        layer = rpc.remote("worker1", Layer, (4,))
        (weight,) = layer.rpc_sync().parameters()
        optimizer = DistributedOptimizer(torch.optim.SGD, [("weight", weight)], lr=8.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        scaler = GradScaler(init_scale=4.0)
        with rpc.carry_modes(), torch.autocast("cpu"), autograd.context() as context:
            loss = layer.rpc_sync().forward(torch.ones(4)).sum()
            autograd.backward(context, [scaler.scale(loss)])
            scaler.unscale_(optimizer, context)
            assert clip_grad_norm_(optimizer, context, 1.0) == 2.0
            scaler.step(optimizer, context)
            scaler.update()
            scheduler.step()
        optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer.param_groups[0]["lr"] == 4.0
        assert torch.allclose(weight.to_here(), torch.full((4,), -3.0), atol=1e-4)


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
        with rpc.carry_modes(), pytest.raises(SerializationError, match="is not registered on"):
            rpc.rpc_sync("worker1", not_for_peers)
        with rpc.carry_modes(), pytest.raises(SerializationError, match="is not registered on"):
            rpc.rpc_sync("worker1", functools.partial(double, torch.ones(1)))
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


def total(array: numpy.ndarray, factor: numpy.float32) -> float:  # type: ignore[type-arg]
    return float(array.sum() * factor)


def test_arrays_need_no_registering() -> None:
    with (
        LocalCluster(2, options=AgentOptions(registry=Registry([total]))) as cluster,
        cluster[0].active(),
    ):
        array, factor = numpy.arange(5.0), numpy.float32(2)
        assert rpc.rpc_sync("worker1", total, (array, factor)) == 20.0
        assert rpc.remote("worker1", total, (array, factor)).to_here() == 20.0


def test_remote_modules_need_their_class_registered() -> None:
    with (
        LocalCluster(2, options=AgentOptions(registry=Registry([torch.nn.Linear]))) as cluster,
        cluster[0].active(),
    ):
        module = lockstitch.nn.RemoteModule("worker1/cpu", torch.nn.Linear, args=(4, 2))
        module.eval().train()
        with autograd.context() as context:
            autograd.backward(context, [module(torch.ones(3, 4)).sum()])
            parameters = module.remote_parameters()
            DistributedOptimizer(torch.optim.SGD, parameters[:0], lr=1.0).step(context)
        assert len(parameters) == 2
        other = lockstitch.nn.RemoteModule("worker1/cpu", torch.nn.Bilinear, args=(4, 4, 2))
        with pytest.raises(SerializationError, match="Bilinear is not registered on this worker"):
            other(torch.ones(3, 4), torch.ones(3, 4))


def kept_module() -> rpc.RRef[torch.nn.Module]:
    return rpc.RRef(torch.nn.ReLU())


def test_modules_that_are_not_registered_are_left_alone() -> None:
    registry = Registry([kept_module])
    with (
        LocalCluster(2, options=AgentOptions(registry=registry)) as cluster,
        cluster[0].active(),
    ):
        kept = rpc.rpc_sync("worker1", kept_module)
        for function in (remote_module._param_rrefs, remote_module._set_training):
            with pytest.raises(SerializationError, match="may not be called on this worker"):
                rpc.rpc_sync("worker1", function, (kept, True))


def test_remote_slots_are_refused_with_what_to_do_instead(cluster: LocalCluster) -> None:
    with cluster[0].active():
        parallel = lockstitch.nn.DataParallel(torch.nn.Linear(4, 2), device_ids=["cpu", "worker1"])
        with pytest.raises(SerializationError, match="RemoteModule with the module's class"):
            parallel(torch.ones(4, 4))
        parallel.close()
