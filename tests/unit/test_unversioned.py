"""Writes of which versions do not tell, told to who keeps copies of tensors."""

from __future__ import annotations

import pytest
import torch

from lockstitch.unversioned import UnversionedWrites


@pytest.fixture
def writes() -> UnversionedWrites:
    writes = UnversionedWrites()
    assert writes.number_of(torch.zeros(1)) == 0
    return writes


def test_a_state_is_another_one_after_each_kind_of_write_and_the_same_else(writes) -> None:
    tensors = [torch.zeros(4, requires_grad=True), torch.zeros(2)]
    states = [writes.states_of(tensors)]
    assert states[0] == writes.states_of(tensors)
    writes.note([tensors[0]])
    states.append(writes.states_of(tensors))
    writes.note([tensors[0].data[1:]])  # another tensor in the same memory
    states.append(writes.states_of(tensors))
    with torch.no_grad():
        tensors[0].add_(1)
    states.append(writes.states_of(tensors))
    assert states[3] == writes.states_of(tensors)
    assert len({state[0] for state in states}) == 4
    assert len({state[1] for state in states}) == 1


def test_what_has_no_memory_is_left_out(writes) -> None:
    dense, sparse = torch.zeros(2), torch.eye(2).to_sparse()
    writes.note([sparse, dense])
    assert writes.number_of(sparse) == 0
    assert writes.number_of(dense) > 0


def test_nothing_is_kept_until_somebody_asks() -> None:
    writes, tensor = UnversionedWrites(), torch.zeros(2)
    writes.note([tensor])
    assert writes.number_of(tensor) == 0
    writes.note([tensor])
    assert writes.number_of(tensor) > 0
