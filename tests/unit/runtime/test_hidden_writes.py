"""Whoever keeps copies of tensors hears of every write to them, of hidden ones too."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
from torch import optim
from torch.optim import optimizer as theirs

from lockstitch.optim.local import LocalOptimizer
from lockstitch.runtime.hidden_writes import HiddenWrites
from lockstitch.testing.cluster import LocalCluster


@pytest.fixture
def writes():
    with LocalCluster(1) as cluster:
        yield HiddenWrites.of(cluster[0])
    assert not theirs._global_optimizer_post_hooks


def ones() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def local(tensors, **options) -> LocalOptimizer:
    return LocalOptimizer(optim.SGD, tensors, contextlib.nullcontext(), lr=0.1, **options)


@pytest.mark.parametrize("fused", [False, True])
def test_a_state_is_another_one_after_a_step_through_an_alias_and_the_same_else(writes, fused):
    tensors = ones(), ones()
    optimizer = local(tensors[:1], fused=fused)
    writes.add(optimizer)
    before = writes.states_of(tensors)
    assert writes.states_of(tensors) == before
    optimizer.step({tensors[0]: torch.ones(2)})
    after = writes.states_of(tensors)
    assert after[0] != before[0]
    assert after[1] == before[1]
    with torch.no_grad():
        tensors[1].mul_(2)
    assert writes.states_of(tensors)[0] == after[0]
    assert writes.states_of(tensors)[1] != after[1]


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_of_an_ordinary_optimizer_is_seen(writes, fused) -> None:
    tensors = ones(), ones()
    optimizer = optim.Adam(tensors[:1], fused=fused)
    before = writes.states_of(tensors)
    tensors[0].grad = torch.ones(2)
    optimizer.step()
    after = writes.states_of(tensors)
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_another_writer_in_the_place_of_one_that_has_gone_is_not_taken_for_it(writes) -> None:
    tensor, states = ones(), []
    for _ in range(2):
        optimizer = local([tensor])
        writes.add(optimizer)
        optimizer.step({tensor: torch.ones(2)})
        states += writes.states_of([tensor])
        del optimizer
        gc.collect()
    assert states[0] != states[1]
