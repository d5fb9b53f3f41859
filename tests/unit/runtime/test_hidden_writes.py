"""Whoever keeps copies of tensors hears of every write to them, by whom versions know nothing too."""

from __future__ import annotations

import contextlib
import gc

import torch
from torch import optim

from lockstitch.optim.local import LocalOptimizer
from lockstitch.runtime.hidden_writes import HiddenWrites


def test_a_state_is_another_one_after_any_write_and_the_same_else() -> None:
    one, other = (torch.ones(2, requires_grad=True) for _ in range(2))
    writes = HiddenWrites()
    optimizer = LocalOptimizer(optim.SGD, [one, other], contextlib.nullcontext(), lr=0.1)
    writes.add(optimizer)
    before = writes.states_of([one, other])
    assert writes.states_of([one, other]) == before
    optimizer.step({one: torch.ones(2)})
    after = writes.states_of([one, other])
    assert after[0] != before[0]
    assert after[1] == before[1]
    with torch.no_grad():
        other.mul_(2)
    assert writes.states_of([one, other])[0] == after[0]
    assert writes.states_of([one, other])[1] != after[1]


def test_another_writer_in_the_place_of_one_that_has_gone_is_not_taken_for_it() -> None:
    tensor = torch.ones(2, requires_grad=True)
    writes, states = HiddenWrites(), []
    for _ in range(2):
        optimizer = LocalOptimizer(optim.SGD, [tensor], contextlib.nullcontext(), lr=0.1)
        writes.add(optimizer)
        optimizer.step({tensor: torch.ones(2)})
        states += writes.states_of([tensor])
        del optimizer
        gc.collect()
    assert states[0] != states[1]
