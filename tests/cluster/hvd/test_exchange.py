from __future__ import annotations

import torch
from torch import nn

from lockstitch import hvd
from lockstitch.hvd.exchange import Exchange, ReducerOptions
from lockstitch.hvd.job import current_session
from lockstitch.hvd.process_sets import global_process_set
from tests.cluster.hvd.ranks import on_ranks


def weight_with_gradient():
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.full((2,), float(hvd.rank()))
    return weight


def options(compression=hvd.Compression.none):
    return ReducerOptions(compression, global_process_set)


def test_reduced_gradient_is_the_same_tensor_and_undisturbed():
    def program():
        weight = weight_with_gradient()
        before = weight.grad
        exchange = Exchange(current_session(), options(hvd.Compression.fp16), "w", [weight])
        exchange.wait()
        assert weight.grad is before
        assert not exchange.is_disturbed()
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
