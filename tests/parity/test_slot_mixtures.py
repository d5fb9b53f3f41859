"""Slots of several kinds in one `DataParallel`, in every order, against the plain module."""

from __future__ import annotations

import contextlib
import copy
import itertools

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallel
from tests.parity.slot_programs import Subject

KINDS = ("thread", "fork")
ORDERS = [order for count in (2, 3) for order in itertools.product(KINDS, repeat=count)]


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
        output = model(torch.randn(rows, 3, dtype=torch.float64))
        output.square().mean().backward()
        yield output.detach()
        yield [parameter.grad for parameter in module.parameters()]
        optimizer.step()


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_training_is_that_of_the_plain_module_whatever_the_order(order):
    torch.manual_seed(0)
    module = Subject()
    twin = copy.deepcopy(module)
    with contextlib.closing(DataParallel(module, order)) as model:
        actual = list(outcomes(module, model))
    torch.testing.assert_close(actual, list(outcomes(twin, twin)))
