"""What a module holds besides its parameters."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from tests.parity.behaviours.pieces import Of, batch, own, same, step


class Holder:
    """An object that is no module and holds parts of one."""

    def __init__(self, **parts):
        self.__dict__.update(parts)

    def __call__(self, x):
        return self.layer(x)


@same
def plain_objects_and_closures_that_hold_parts_of_the_module(wrap):
    module = Of(lambda self, x: self.holder(x) + self.closure(x) * self.table["a"][0].weight.sum())
    linear = module.linear
    module.holder = Holder(layer=linear)
    module.holder.itself = module.holder
    module.closure = lambda x: linear(x).tanh()
    module.table = {"a": [Holder(weight=linear.weight)]}
    return step(wrap(module), module, batch())


@own
def a_parameter_that_the_module_hides_is_an_error(wrap):
    weight = torch.ones(4, requires_grad=True)
    for hidden in (Holder(layer=nn.Linear(4, 4)), lambda x: x * weight, [weight]):
        module = Of(lambda self, x: self.linear(self.hidden(x)))
        module.hidden = hidden if callable(hidden) else partial(torch.mul, *hidden)
        model = wrap(module)
        with pytest.raises(RuntimeError, match=r"of shape \(4.* its gradient would be lost"):
            model(batch())
        with torch.no_grad():
            torch.testing.assert_close(model(x := batch()), module(x))


@same
def a_leaf_that_the_forward_pass_makes_is_its_own_affair(wrap):
    def forward(self, x):
        offset = torch.zeros(len(x), 3, requires_grad=True)
        energy = (self.linear(x) + offset).pow(3).sum()
        (gradient,) = torch.autograd.grad(energy, offset, create_graph=True)
        return gradient + self.linear(x) + offset

    module = Of(forward)
    return step(wrap(module), module, batch())


@own
def devices_are_checked_when_it_is_called(wrap):
    module = nn.Sequential(nn.Linear(4, 3, device="meta"), nn.Tanh())
    model = wrap(module)
    with pytest.raises(RuntimeError, match="parameters and buffers on device cpu"):
        model(batch())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.5)
    step(model, module, batch())
    model.to("meta")
    with pytest.raises(RuntimeError, match="but found one of them on device: meta"):
        model(batch())
