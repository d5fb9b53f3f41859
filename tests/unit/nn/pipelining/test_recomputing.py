"""A module that runs again is as it was, and stays as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch.nn.pipelining.recomputing import Recomputing


class CountsLarge(nn.Module):
    """Multiplies by how many large inputs it has had before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(()))
        self.register_buffer("table", torch.arange(3.0))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, *, plus=0.0):
        y = x * self.count * self.weight + self.table + plus
        if x.sum() > 5:
            self.count += 1
        return y


def given(value: float, **kwargs):
    return (torch.full((3,), value),), kwargs


def test_buffers_are_as_they_were_whoever_has_changed_them():
    module = CountsLarge()
    recomputing = Recomputing(module)
    runs = [recomputing.run(given(value)) for value in (1.0, 2.0, 1.0)]  # the second one counts
    for value, (output, former) in zip((1.0, 2.0, 1.0), runs, strict=True):
        assert torch.equal(recomputing.run_again(former, given(value)), output)
    assert module.count == 2


def test_arguments_by_name_are_given_both_times():
    module = CountsLarge()
    recomputing = Recomputing(module)
    output, former = recomputing.run(given(2.0, plus=1.0))
    assert torch.equal(recomputing.run_again(former, given(2.0, plus=1.0)), output)


def test_buffers_that_do_not_change_are_copied_once():
    recomputing = Recomputing(CountsLarge())
    first, second = (recomputing.run(given(value))[1] for value in (2.0, 2.0))
    assert first.buffers["table"] is second.buffers["table"]
    assert first.buffers["count"] is not second.buffers["count"]


def test_a_buffer_may_be_another_tensor_afterwards():
    class Replaces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(2))

        def forward(self, x):
            y = x * self.state.sum()
            self.state = torch.ones(3, dtype=torch.float64)
            return y

    module = Replaces()
    recomputing = Recomputing(module)
    output, former = recomputing.run(given(2.0))
    assert torch.equal(recomputing.run_again(former, given(2.0)), output)
    assert module.state.tolist() == [1, 1, 1]


@pytest.mark.parametrize("gives_data", [False, True])
def test_a_parameter_that_others_write_to_meanwhile_is_told(gives_data):
    module = CountsLarge()
    recomputing = Recomputing(module)
    _, former = recomputing.run(given(1.0))
    if gives_data:
        module.weight.data = torch.full((3,), 2.0)
    else:
        module.weight.data.add_(0)
        with torch.no_grad():
            module.weight.add_(1)
    with pytest.raises(RuntimeError, match="between the forward pass of a stage and its re"):
        recomputing.run_again(former, given(1.0))
    output, former = recomputing.run(given(1.0))
    assert torch.equal(recomputing.run_again(former, given(1.0)), output)


def test_what_the_module_writes_itself_is_its_own_affair():
    embedding = nn.Embedding(4, 2, max_norm=0.1)
    recomputing = Recomputing(embedding)
    runs = [recomputing.run(((torch.tensor([row]),), {})) for row in range(3)]
    for row, (output, former) in enumerate(runs):
        found = recomputing.run_again(former, ((torch.tensor([row]),), {}))
        torch.testing.assert_close(found, output)
