"""Parts of a model are tried without a trace."""

from __future__ import annotations

import torch
from torch import nn

from lockstitch.nn.pipelining.costs import cost_of, without_a_trace


def test_parameters_cost_their_bytes_once():
    module = nn.Linear(3, 2)
    cost, output = cost_of(module, (torch.ones(1, 3),), [*module.parameters()] * 2, "parameters")
    assert cost == 4 * (6 + 2)
    assert output.shape == (1, 2)
    assert not output.requires_grad


def test_memory_counts_what_is_saved_and_gradients():
    cost, _ = cost_of(torch.exp, (torch.zeros(10),), [], "memory")
    assert cost == 40  # the result
    module = nn.Linear(3, 2)
    cost, _ = cost_of(module, (torch.ones(5, 3),), list(module.parameters()), "memory")
    assert cost == 2 * 4 * 8 + 4 * 15  # parameters, their gradients, the input


def test_time_is_larger_for_more_work():
    small, large = nn.Linear(4, 4), nn.Linear(1000, 1000)
    little, _ = cost_of(small, (torch.ones(2, 4),), list(small.parameters()), "time")
    much, _ = cost_of(large, (torch.ones(500, 1000),), list(large.parameters()), "time")
    assert 0 < little < much


def test_nothing_is_left_behind():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.ReLU(inplace=True))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    with without_a_trace(module), torch.no_grad():
        cost_of(module, (torch.randn(4, 3),), list(module.parameters()), "time")
        cost_of(module, (torch.randn(4, 3),), list(module.parameters()), "memory")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(each.grad is None for each in module.parameters())
