"""Slots of several kinds in one `DataParallel`, in every order, against the plain module."""

from __future__ import annotations

import contextlib
import copy
import itertools

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallel

KINDS = ("thread", "fork")
ORDERS = [order for count in (2, 3) for order in itertools.product(KINDS, repeat=count)]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.lstm(x.unsqueeze(1))[0][:, 0])


class Tied(nn.Module):
    """With tied and frozen parameters, and buffers of both kinds."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.outer.weight = self.inner.weight
        self.fixed = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("shift", torch.zeros(4))
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64, requires_grad=True))

    def forward(self, x):
        return self.outer(self.inner(x).tanh() * self.fixed + self.shift) * self.scale


def replace_a_parameter(module):
    name, old = next(iter(module.named_parameters()))
    owner, _, last = name.rpartition(".")
    setattr(module.get_submodule(owner), last, nn.Parameter(old.detach() * 0.5))


def assign_data(module):
    for parameter in module.parameters():
        parameter.data = parameter.data * 0.9


def load(module):
    module.load_state_dict({name: value * 0.8 for name, value in module.state_dict().items()})


def flip(module):
    module.train(not module.training)


CHANGES = (replace_a_parameter, assign_data, load, flip)


def outcomes(module, model):
    """Of steps that use more and more slots, with changes between them."""
    torch.manual_seed(1)
    for i, rows in enumerate((2, 6, 5, 6, 6, 6)):
        if i >= 2:
            CHANGES[i - 2](module)
        # Of parameters as they are now.
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        module.zero_grad()
        output = model(torch.randn(rows, 4, dtype=torch.float64))
        output.square().mean().backward()
        yield output.detach()
        yield [parameter.grad for parameter in module.parameters()]
        optimizer.step()


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("make", [Tied, Recurrent])
def test_training_is_that_of_the_plain_module_whatever_the_order(make, order):
    torch.manual_seed(0)
    module = make().double()
    twin = copy.deepcopy(module)
    with contextlib.closing(DataParallel(module, order)) as model:
        actual = list(outcomes(module, model))
    torch.testing.assert_close(actual, list(outcomes(twin, twin)))
