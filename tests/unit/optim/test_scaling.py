"""A scaled step is made by all owners or by none, and the scale is torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from lockstitch import autograd, rpc
from lockstitch.optim import DistributedOptimizer, GradScaler, clip_grad_norm_, parameters_of
from lockstitch.testing.cluster import LocalCluster


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster


def weight_of(module: nn.Module) -> torch.Tensor:
    return module.weight.detach().clone()


def layers(dtype: torch.dtype = torch.float32) -> list:
    return [rpc.remote(f"worker{number}", nn.Linear, (2, 1), {"dtype": dtype}) for number in (1, 2)]


def weights(modules) -> list[torch.Tensor]:
    return [rpc.rpc_sync(module.owner(), _weight, (module,)) for module in modules]


def _weight(module) -> torch.Tensor:
    return weight_of(module.local_value())


def losses(modules, *factors: float) -> torch.Tensor:
    x = torch.ones(1, 2, dtype=weights(modules[:1])[0].dtype)
    return sum(
        module.rpc_sync().forward(x).sum() * factor
        for module, factor in zip(modules, factors, strict=True)
    )


def optimizer_of(modules) -> DistributedOptimizer:
    references = [each for module in modules for each in parameters_of(module)]
    return DistributedOptimizer(optim.SGD, references, lr=0.5)


def step(scaler: GradScaler, optimizer: DistributedOptimizer, loss: torch.Tensor, context) -> None:
    autograd.backward(context, [scaler.scale(loss)])
    scaler.step(optimizer, context)
    scaler.update()


def test_no_owner_steps_where_one_has_found_infinity(cluster) -> None:
    modules = layers()
    optimizer, scaler = optimizer_of(modules), GradScaler(init_scale=8.0)
    before = weights(modules)
    with autograd.context() as context_id:
        step(scaler, optimizer, losses(modules, 1.0, torch.inf), context_id)
    assert all(map(torch.equal, weights(modules), before))
    assert scaler.get_scale() == 4.0
    with autograd.context() as context_id:
        step(scaler, optimizer, losses(modules, 1.0, 2.0), context_id)
    changes = [old - new for old, new in zip(before, weights(modules), strict=True)]
    assert torch.allclose(changes[0], torch.full((1, 2), 0.5))
    assert torch.allclose(changes[1], torch.full((1, 2), 1.0))


def test_gradients_may_be_clipped_in_between_which_costs_no_more_than_asking_once_more(
    cluster,
) -> None:
    modules = layers()
    optimizer, scaler = optimizer_of(modules), GradScaler(init_scale=1024.0)
    with autograd.context() as context_id:
        autograd.backward(context_id, [scaler.scale(losses(modules, 3.0, 0.0))])
        scaler.unscale_(optimizer, context_id)
        assert clip_grad_norm_(optimizer, context_id, 100.0) == pytest.approx(27**0.5)
        before = cluster.traffic()
        scaler.step(optimizer, context_id)
        assert (cluster.traffic() - before).kinds["Call"] == 4
        scaler.update()


def test_misuse_is_told(cluster) -> None:
    modules = layers()
    optimizer, scaler = optimizer_of(modules), GradScaler()
    with autograd.context() as context_id:
        with pytest.raises(AssertionError, match="_scale is None"):
            scaler.unscale_(optimizer, context_id)
        scaler.scale(torch.ones(1))
        with pytest.raises(TypeError, match=r"as in scaler\.step\(optimizer, context_id\)"):
            GradScaler().step(optimizer)
        autograd.backward(context_id, [scaler.scale(losses(modules, 1.0, 1.0))])
        scaler.unscale_(optimizer, context_id)
        with pytest.raises(RuntimeError, match="has already been called on this optimizer"):
            scaler.unscale_(optimizer, context_id)
        scaler.step(optimizer, context_id)
        with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
            scaler.step(optimizer, context_id)
    with autograd.context() as other, pytest.raises(RuntimeError, match=r"call update\(\) after"):
        scaler.step(optimizer, other)


def test_gradients_in_half_precision_are_refused(cluster) -> None:
    modules = layers(torch.float16)
    optimizer, scaler = optimizer_of(modules), GradScaler(init_scale=2.0)
    with autograd.context() as context_id:
        autograd.backward(context_id, [scaler.scale(losses(modules, 1.0, 1.0))])
        with pytest.raises(ValueError, match="unscale FP16 gradients"):
            scaler.step(optimizer, context_id)
        with pytest.raises(RuntimeError, match="begin a new context"):
            scaler.step(optimizer, context_id)


def test_a_disabled_scaler_steps_and_a_state_is_torchs(cluster) -> None:
    modules = layers()
    optimizer = optimizer_of(modules)
    before = weights(modules)
    with autograd.context() as context_id:
        step(GradScaler(enabled=False), optimizer, losses(modules, 1.0, 1.0), context_id)
    assert not torch.equal(weights(modules)[0], before[0])
    state = torch.amp.GradScaler("cpu", init_scale=32.0).state_dict()
    scaler = GradScaler()
    scaler.load_state_dict(state)
    assert scaler.state_dict() == state


def test_an_optimizer_of_this_process_is_stepped_by_torch(cluster) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer, scaler = optim.SGD([weight], lr=0.5), GradScaler(init_scale=4.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight == 0.5


class Rows(nn.Module):
    """A table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(rows, self.table, sparse=True).sum()

    def value(self) -> torch.Tensor:
        return self.table.detach().clone()


def test_sparse_gradients_are_unscaled(cluster) -> None:
    rows = rpc.remote("worker1", Rows)
    optimizer = DistributedOptimizer(optim.SGD, parameters_of(rows), lr=0.5)
    scaler = GradScaler(init_scale=16.0)
    with autograd.context() as context_id:
        step(scaler, optimizer, rows.rpc_sync().forward(torch.tensor([1, 1])), context_id)
    expected = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    assert torch.equal(rows.rpc_sync().value(), expected)


def test_a_program_in_double_precision_is_scaled(cluster) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        modules = layers(torch.float64)
        optimizer, scaler = optimizer_of(modules), GradScaler(init_scale=8.0)
        before = weights(modules)
        with autograd.context() as context_id:
            step(scaler, optimizer, losses(modules, 1.0, 2.0), context_id)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, weights(modules), [before[0] - 0.5, before[1] - 1.0]))


@pytest.mark.parametrize("optimizer_class", [optim.SGD, optim.Adam, optim.AdamW])
def test_fused_optimizers_step_as_torch_has_them_divide_by_the_scale(
    cluster, optimizer_class
) -> None:
    modules = layers()
    twins = [nn.Linear(2, 1) for _ in modules]
    for twin, module in zip(twins, modules, strict=True):
        twin.load_state_dict(module.to_here().state_dict())
    references = [each for module in modules for each in parameters_of(module)]
    optimizer = DistributedOptimizer(optimizer_class, references, lr=0.5, fused=True)
    own = optimizer_class([p for twin in twins for p in twin.parameters()], lr=0.5, fused=True)
    scaler, plain = GradScaler(init_scale=2.0**14), torch.amp.GradScaler("cpu", 2.0**14)
    for factors in ((1.0, 3.0), (float("inf"), 1.0), (0.3, 1e-4)):
        with autograd.context() as context_id:
            step(scaler, optimizer, losses(modules, *factors), context_id)
        own.zero_grad()
        x = torch.ones(1, 2)
        pairs = zip(twins, factors, strict=True)
        plain.scale(sum(twin(x).sum() * factor for twin, factor in pairs)).backward()
        plain.step(own)
        plain.update()
        assert scaler.get_scale() == plain.get_scale()
        expected = [weight_of(twin) for twin in twins]
        torch.testing.assert_close(weights(modules), expected, rtol=0, atol=0)


def test_who_gives_a_context_with_another_optimizer_is_told_what_to_do() -> None:
    optimizer, scaler = optim.SGD([nn.Parameter(torch.zeros(1))]), GradScaler()
    scaler.scale(torch.zeros(()))
    for ask in (scaler.step, scaler.unscale_):
        with pytest.raises(TypeError, match=r"DistributedOptimizer, which SGD is not: put them"):
            ask(optimizer, 7)
