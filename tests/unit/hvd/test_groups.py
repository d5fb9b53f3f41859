"""Which gradients go together, without any other rank."""

from __future__ import annotations

import pytest
import torch

from lockstitch.hvd.groups import Groups, ParameterState, buckets_of


def made(*sizes: int) -> tuple[list[torch.Tensor], dict[torch.Tensor, ParameterState], Groups]:
    """Parameters, in groups of these sizes, and one that is in none."""
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(sum(sizes) + 1)]
    states = {each: ParameterState(str(number)) for number, each in enumerate(parameters)}
    rest = iter(parameters)
    return parameters, states, Groups([[next(rest) for _ in range(n)] for n in sizes], states)


def test_group_goes_with_its_last_gradient() -> None:
    parameters, states, groups = made(2, 1)
    one, two, three, alone = (states[each] for each in parameters)
    assert not groups.complete(one)
    assert not groups.complete(one)  # it counts once
    assert groups.complete(three)
    assert groups.complete(two)
    assert groups.complete(alone)


def test_gradient_that_was_replaced_is_missing_again() -> None:
    parameters, states, groups = made(2)
    one, two, _ = (states[each] for each in parameters)
    groups.complete(one)
    groups.take_back(one)
    groups.take_back(one)
    assert not groups.complete(two)
    assert groups.complete(one)
    groups.begin_anew()
    assert not groups.complete(two)


def test_group_waits_for_none_that_is_frozen() -> None:
    parameters, states, groups = made(3)
    parameters[1].requires_grad = False
    assert not groups.complete(states[parameters[0]])
    assert groups.complete(states[parameters[2]])
    assert groups.unit(parameters[0]) == [parameters[0], parameters[2]]
    assert groups.unit(parameters[1]) == [parameters[1]]  # with a gradient from before
    states[parameters[0]].is_submitted = True
    assert groups.unit(parameters[2]) == [parameters[2]]


def test_gradient_that_replaces_another_is_counted_anew() -> None:
    state = ParameterState("weight")
    first, second = torch.zeros(1), torch.zeros(1)
    assert [state.count_pass(each) for each in (first, first, second)] == [1, 2, 1]
    state.is_submitted = True
    assert state.count_pass(first) == 2  # too late: it was submitted with what it had


@pytest.mark.parametrize(("device", "count"), [("cpu", 6), ("meta", 1)])
def test_buckets_of_a_device_are_larger(device: str, count: int) -> None:
    parameters = [torch.empty(1 << 20, device=device) for _ in range(6)]
    assert len(buckets_of(parameters)) == count
