from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import hvd
from lockstitch.hvd.exchange import Exchange, ReducerOptions
from lockstitch.hvd.job import active, current_session
from lockstitch.hvd.process_sets import global_process_set
from tests.cluster.collectives.ranks import Ranks
from tests.cluster.hvd.ranks import on_ranks


def weight_with_gradient():
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.full((2,), float(hvd.rank()))
    return weight


def options(compression=hvd.Compression.none):
    return ReducerOptions(compression, global_process_set)


def test_parameter_gets_the_reduced_gradient():
    def program():
        weight = weight_with_gradient()
        exchange = Exchange(current_session(), options(hvd.Compression.fp16), "w", [weight])
        assert not exchange.is_disturbed()
        exchange.wait()
        return weight.grad.tolist()

    assert on_ranks(2, program) == [[0.5, 0.5]] * 2


def test_a_change_or_a_replacement_is_a_disturbance():
    def program():
        changed, replaced = weight_with_gradient(), weight_with_gradient()
        exchanges = [
            Exchange(current_session(), options(), name, [weight])
            for name, weight in (("changed", changed), ("replaced", replaced))
        ]
        changed.grad.mul_(2)
        replaced.grad = torch.zeros(2)
        found = [each.is_disturbed() for each in exchanges]
        for each in exchanges:
            each.wait()
        return found

    assert on_ranks(2, program) == [[True, True]] * 2


@pytest.mark.parametrize("backend", ["shared_memory", "c10d", "hierarchical"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_large_gradients_move_to_where_they_are_reduced_fastest(backend, set_to_none):
    """Over real backends, and with small ones beside them."""
    ranks = 4 if backend == "hierarchical" else 2

    def train(session):
        with active(session):
            large = nn.Parameter(torch.zeros(600, 512))
            small = [nn.Parameter(torch.zeros(3, 5)) for _ in range(4)]
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([large, *small], lr=1.0))
            seen = []
            for step in range(3):
                optimizer.zero_grad(set_to_none=set_to_none)
                factor = float(session.rank + step)
                (large.sum() * factor + sum(each.sum() for each in small) * factor).backward()
                seen.append(large.grad)
                assert session.is_resident(large.grad) or backend != "shared_memory"
                optimizer.step()
            assert [bool(each.eq(each[0, 0]).all()) for each in (large, *small)] == [True] * 5
            kept = [each.flatten()[0].item() for each in seen]
            return kept, large[0, 0].item(), [each[0, 0].item() for each in small]

    mean = sum(range(ranks)) / ranks
    steps = [mean, mean + 1, mean + 2]
    with Ranks(ranks, backend) as sessions:
        for kept, large, small in sessions.run(train):
            # Without set_to_none it is the same tensor all the time.
            assert kept == (steps if set_to_none else steps[-1:] * 3)
            assert large == -sum(steps)
            assert small == [-sum(steps)] * 4
