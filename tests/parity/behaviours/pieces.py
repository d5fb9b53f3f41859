"""What behaviours are made of: how they are told, modules to run, steps to take."""

from __future__ import annotations

import torch
from torch import nn

SAME = []
"""Behaviours that are the plain module's: what they return is compared."""
OWN = []
"""Behaviours that are told by assertions."""


def same(behaviour):
    SAME.append(behaviour)
    return behaviour


def own(behaviour):
    OWN.append(behaviour)
    return behaviour


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Of(nn.Module):
    """A module with a linear layer, whose forward pass is a function of both and the inputs."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def batch(rows=6, columns=4, **options):
    return torch.randn(rows, columns, **options)


def gradients(module):
    return [p.grad for p in module.parameters()]


def step(model, module, *args, **kwargs):
    """Outputs and gradients of one step."""
    output = model(*args, **kwargs)
    total(output).backward()
    return output, gradients(module)


def total(thing):
    if isinstance(thing, torch.Tensor):
        return thing.abs().pow(2).sum() if thing.requires_grad else torch.zeros(())
    values = thing.values() if isinstance(thing, dict) else thing
    return sum((total(each) for each in values), torch.zeros(()))
