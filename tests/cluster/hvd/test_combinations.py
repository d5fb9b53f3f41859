"""Options of `DistributedOptimizer` together, and parameters that come and go meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import hvd
from tests.cluster.hvd.ranks import on_ranks
from tests.cluster.hvd.steps import (
    OPTIMIZERS,
    STEPS,
    assert_all_are,
    batch,
    loss_of,
    mine,
    model,
    values,
)


def test_a_rank_without_entries_in_a_later_step_takes_part():
    def program():
        table = nn.Embedding(5, 2, sparse=True)
        nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
        for step in range(3):
            optimizer.zero_grad()
            if hvd.rank() == 0 or step == 0:
                table(torch.tensor([3])).sum().backward()
            optimizer.step()
            assert table.weight.grad.is_sparse
        return table.weight.detach()[:, 0].tolist()

    assert on_ranks(2, program) == [[0.0, 0.0, 0.0, -2.0, 0.0]] * 2


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_a_group_of_sparse_and_dense_gradients(sparse_as_dense):
    def program():
        table, other = nn.Embedding(5, 2, sparse=True), nn.Embedding(5, 2, sparse=True)
        vectors = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))]
        parameters = [table.weight, *vectors, other.weight]
        for each in parameters:
            nn.init.zeros_(each)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=1.0), groups=1, sparse_as_dense=sparse_as_dense
        )
        for _ in range(2):
            optimizer.zero_grad()
            words = torch.tensor([hvd.rank()])
            outputs = [table(words), other(words), *(each * hvd.rank() for each in vectors)]
            sum(each.sum() for each in outputs).backward()
            optimizer.step()
        return [each.detach().sum().item() for each in parameters]

    assert on_ranks(2, program) == [[-4.0, -3.0, -4.0, -4.0]] * 2


def test_matrices_and_vectors_of_one_model_by_powersgd():
    def program():
        net = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 12))
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        before = values(net)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=1.0), compression=hvd.Compression.powersgd(rank=2)
        )
        for _ in range(2):
            optimizer.zero_grad()
            (net(torch.ones(1, 12)) * hvd.rank()).sum().backward()
            optimizer.step()
        return [now - then for now, then in zip(values(net), before, strict=True)]

    first, second = on_ranks(2, program)
    torch.testing.assert_close(first[3], torch.full((12,), -1.0))
    for ours, others in zip(first, second, strict=True):
        assert torch.equal(ours, others)


def test_a_parameter_that_is_frozen_while_it_has_a_gradient():
    """As by `zero_grad(set_to_none=False)`. The others of its group are there already."""

    def train(net, optimizer, part):
        for step in range(STEPS):
            net[0].weight.requires_grad_(step != 2)
            optimizer.zero_grad(set_to_none=False)
            loss_of(net, *map(part, batch(step))).backward()
            if step == 1:
                net[2].weight.requires_grad_(False)
            optimizer.step()
            net[2].weight.requires_grad_(True)
        return values(net)

    def program():
        net = model()
        optimizer = OPTIMIZERS["sgd"](net.parameters())
        return train(net, hvd.DistributedOptimizer(optimizer), mine)

    alone = model()
    expected = train(alone, OPTIMIZERS["sgd"](alone.parameters()), lambda tensor: tensor)
    assert_all_are(expected, on_ranks(2, program))


@pytest.mark.parametrize("groups", [None, 1])
def test_clipping_where_ranks_use_other_parameters(groups):
    def program():
        parameters = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), groups=groups)
        for _ in range(2):
            optimizer.zero_grad()
            used = parameters if hvd.rank() == 0 else parameters[:1]
            sum(6 * each.sum() for each in used).backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        return [parameter.item() for parameter in parameters]

    norm = 54**0.5  # of 6, 3 and 3
    expected = [pytest.approx(-2 * each / norm, rel=1e-5) for each in (6, 3, 3)]
    assert on_ranks(2, program) == [expected] * 2


def test_a_gradient_that_begins_anew_does_not_complete_its_group_twice():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([one, two], lr=1.0), op=hvd.Sum, groups=1, backward_passes_per_step=2
        )
        for _ in range(2):
            one.grad = None  # as by `module.zero_grad()`, of which the optimizer hears nothing
            for _ in range(2):
                one.sum().backward()
        for _ in range(2):
            two.sum().backward()
        optimizer.step()
        return one.item(), two.item()

    assert on_ranks(2, program) == [(-4.0, -4.0)] * 2


@pytest.mark.parametrize("passes", [1, 2])
def test_a_step_that_a_scaler_passes_over_and_gradients_set_to_zero_by_the_module(passes):
    def program():
        net = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(net.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=1.0), backward_passes_per_step=passes
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (1.0, float("inf"), float("inf"), 1.0):
            net.zero_grad(set_to_none=False)  # of which the optimizer hears nothing
            for _ in range(passes):
                scaler.scale(net(torch.full((1, 1), hvd.rank() * 1.0)) * factor).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return net.weight.item(), scaler.get_scale()

    assert on_ranks(2, program) == [(-1.0 * passes, 1.0)] * 2


def test_a_rank_alone_adds_to_gradients_as_often_as_it_likes():
    def program():
        net = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(net.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0))
        for factor in (1.0, 1.0, 2.0):  # nothing was reduced that could be reduced again
            net.zero_grad(set_to_none=False)
            (net(torch.ones(1, 1)) * factor).sum().backward()
        optimizer.step()
        return net.weight.item()

    assert on_ranks(1, program) == [-2.0]
