"""One step updates parameters on all their owners, as the plain optimizer would."""

from __future__ import annotations

import pytest
import torch
from torch import optim

from lockstitch import autograd, rpc
from lockstitch.optim import DistributedOptimizer
from lockstitch.testing.cluster import LocalCluster
from tests.unit.optim.programs import FailingOptimizer, Layer, RefusingOptimizer


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster


def remote_layers(*owners: str, requires_grad: bool = True) -> list[rpc.RRef[Layer]]:
    return [rpc.remote(owner, Layer, (requires_grad,)) for owner in owners]


def parameters_of(layers: list[rpc.RRef[Layer]]) -> list[rpc.RRef[torch.Tensor]]:
    return [layer.remote().get_weight() for layer in layers]


def train(
    layers: list[rpc.RRef[Layer]], optimizer: DistributedOptimizer, batch: torch.Tensor
) -> None:
    with autograd.context() as context_id:
        for layer in layers:
            batch = layer.rpc_sync().forward(batch)
        autograd.backward(context_id, [batch.sum()])
        optimizer.step(context_id)


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}),
        (optim.Adam, {"lr": 0.01, "amsgrad": True}),
        (optim.Rprop, {"lr": 0.05}),
    ],
)
def test_steps_equal_those_of_one_process(cluster, optimizer_class, options) -> None:
    batch = torch.rand(3, 3)
    local = [Layer(), Layer(), Layer()]
    local_optimizer = optimizer_class([layer.weight for layer in local], **options)
    layers = remote_layers("worker1", "worker2", "worker0")  # one of them this worker's own
    optimizer = DistributedOptimizer(optimizer_class, parameters_of(layers), **options)
    for _ in range(3):
        train(layers, optimizer, batch)
        local_optimizer.zero_grad()
        output = batch
        for layer in local:
            output = layer.forward(output)
        output.sum().backward()
        local_optimizer.step()
    for ours, plain in zip(layers, local, strict=True):
        assert torch.equal(ours.rpc_sync().get_weight(), plain.weight)


def test_there_is_one_optimizer_for_each_owner(cluster) -> None:
    layers = remote_layers("worker1", "worker2", "worker1")
    optimizer = DistributedOptimizer(optim.SGD, parameters_of(layers), 0.1)
    owners = [reference.owner_name() for reference in optimizer.remote_optimizers]
    assert owners == ["worker1", "worker2"]


def test_parameters_without_gradient_stay_as_they_are(cluster) -> None:
    frozen = remote_layers("worker2", requires_grad=False)
    unused = remote_layers("worker1")
    layers = remote_layers("worker1") + frozen
    before = [layer.rpc_sync().get_weight() for layer in frozen + unused]
    optimizer = DistributedOptimizer(optim.SGD, parameters_of(layers + unused), lr=0.1)
    train(layers, optimizer, torch.rand(3, 3))
    after = [layer.rpc_sync().get_weight() for layer in frozen + unused]
    assert all(map(torch.equal, before, after))
    assert not torch.equal(layers[0].rpc_sync().get_weight(), Layer().weight)


def test_a_step_of_one_context_does_not_use_the_gradients_of_another(cluster) -> None:
    first, second = remote_layers("worker1", "worker1")
    optimizer = DistributedOptimizer(optim.SGD, parameters_of([first, second]), lr=0.1)
    train([first], optimizer, torch.rand(3, 3))
    moved = first.rpc_sync().get_weight()
    train([second], optimizer, torch.rand(3, 3))
    assert torch.equal(first.rpc_sync().get_weight(), moved)


def test_parameters_and_optimizers_themselves_are_refused_with_advice(cluster) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match=r"number 1 is a Parameter: wrap .* in RRef\(…\)"):
        DistributedOptimizer(optim.SGD, [rpc.RRef(parameter), parameter], lr=0.1)  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"optimizer_class is a class, such as torch\.optim\.SGD"):
        DistributedOptimizer(optim.SGD([parameter], lr=1), [rpc.RRef(parameter)])  # type: ignore[arg-type]


def test_one_reference_is_refused_with_advice(cluster) -> None:
    (layer,) = remote_layers("worker1")
    with pytest.raises(TypeError, match="is a list of references to parameters, not one"):
        DistributedOptimizer(optim.SGD, layer, lr=0.1)


def test_what_only_an_ordinary_optimizer_has_is_explained(cluster) -> None:
    optimizer = DistributedOptimizer(optim.SGD, [], lr=0.1)
    with pytest.raises(AttributeError, match=r"'state': .* load_state_dict\(\) changes it"):
        print(optimizer.state)
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        print(optimizer.nothing)


def test_what_a_constructor_raises_is_raised_here(cluster) -> None:
    with pytest.raises(ValueError, match="no optimizer today") as caught:
        DistributedOptimizer(RefusingOptimizer, parameters_of(remote_layers("worker1", "worker2")))
    assert any("also on worker 'worker2': ValueError" in n for n in caught.value.__notes__)


def test_wrong_options_are_shown_without_frames_of_ours(cluster) -> None:
    with pytest.raises(TypeError, match="learning_rate") as caught:
        DistributedOptimizer(optim.SGD, parameters_of(remote_layers("worker1")), learning_rate=0.1)
    assert caught.value.__cause__ is None


def test_what_a_step_raises_is_raised_here_after_all_have_ended(cluster) -> None:
    layers = remote_layers("worker1", "worker2")
    optimizer = DistributedOptimizer(FailingOptimizer, parameters_of(layers))
    with pytest.raises(ValueError, match="no step today") as caught:
        train(layers, optimizer, torch.rand(3, 3))
    assert any("also on worker 'worker2': ValueError" in n for n in caught.value.__notes__)


def test_an_unknown_context_is_refused(cluster) -> None:
    optimizer = DistributedOptimizer(optim.SGD, parameters_of(remote_layers("worker1")), lr=0.1)
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 100"):
        optimizer.step(100)


def test_no_parameters_are_no_work(cluster) -> None:
    optimizer = DistributedOptimizer(optim.SGD, [], lr=0.1)
    assert optimizer.remote_optimizers == []
    with autograd.context() as context_id:
        optimizer.step(context_id)


def test_an_owner_that_took_no_part_in_the_context_is_left_alone(cluster) -> None:
    idle, busy = remote_layers("worker2", "worker1")
    optimizer = DistributedOptimizer(optim.SGD, parameters_of([idle, busy]), lr=0.1)
    before = idle.rpc_sync().get_weight()
    train([busy], optimizer, torch.rand(3, 3))
    assert torch.equal(idle.rpc_sync().get_weight(), before)


def test_of_a_reference_to_a_module_is_said_how_to_refer_to_its_parameters(cluster) -> None:
    with pytest.raises(TypeError, match=r"to a module: parameters_of\(reference\)"):
        DistributedOptimizer(optim.SGD, [rpc.remote("worker1", torch.nn.Linear, (2, 2))], lr=0.1)
