"""What goes wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.parity.behaviours.pieces import Net, Of, batch, gradients, own, step


class CustomError(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):
        return type(self), (self.code, self.args[0])


def refusing(row, error):
    """A module that raises when a part begins with `row`."""

    def check(self, x):
        if x[0, 0].item() == row:
            raise error
        return self.linear(x)

    return Of(check)


@own
def exceptions_of_a_slot_keep_their_type(wrap):
    model, x = wrap(refusing(3, KeyError("here"))), torch.arange(6.0)[:, None].expand(6, 4)
    with pytest.raises(KeyError, match="here") as caught:
        model(x)
    assert "in slot 1 (" in str(caught.value.__cause__)
    assert "Original Traceback" in str(caught.value.__cause__)
    assert "in check" in str(caught.value.__cause__)
    assert model(x[:3]).shape == (3, 3)


@own
def exceptions_of_ones_own(wrap):
    model = wrap(refusing(3, CustomError(7, "mine")))
    with pytest.raises(CustomError, match="mine") as caught:
        model(torch.arange(6.0)[:, None].expand(6, 4))
    assert caught.value.code == 7


@own
def exceptions_of_slot_0_come_first(wrap):
    def fail(self, x):
        raise ValueError(f"at {x[0, 0].item():.0f}")

    model = wrap(Of(fail))
    for _ in range(2):
        with pytest.raises(ValueError, match="at 0"):
            model(torch.arange(6.0)[:, None].expand(6, 4))


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, refuses):
        ctx.refuses = refuses
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.refuses:
            raise LookupError("on the way back")
        return gradient, None


@own
def exceptions_on_the_way_back(wrap):
    module = Of(lambda self, x: Refuses.apply(self.linear(x), x[0, 0].item() == 3))
    model, x = wrap(module), torch.arange(6.0)[:, None].expand(6, 4)
    with pytest.raises(LookupError, match="on the way back"):
        model(x).sum().backward()
    module.zero_grad()
    step(model, module, x[:3])
    grads = gradients(module)
    module.zero_grad()
    step(module, module, x[:3])
    torch.testing.assert_close(grads, gradients(module))


@own
def exceptions_of_a_hook_leave_nothing_behind(wrap):
    module, x = Net(), batch()
    model = wrap(module)

    def fail(_grad):
        raise ArithmeticError("in a hook")

    handle = module.first.weight.register_hook(fail)
    with pytest.raises(ArithmeticError, match="in a hook"):
        model(x).sum().backward()
    handle.remove()
    module.zero_grad()
    _, grads = step(model, module, x)
    module.zero_grad()
    _, expected = step(module, module, x)
    torch.testing.assert_close(grads, expected)


@own
def uninitialized_parameters_raise(wrap):
    module = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(RuntimeError, match="uninitialized parameters"):
        wrap(module)(batch())
