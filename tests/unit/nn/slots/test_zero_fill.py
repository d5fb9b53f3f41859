"""Zeros for what nobody used."""

from __future__ import annotations

import torch

from lockstitch.nn.slots.zero_fill import ZeroFill


def test_who_goes_back_through_one_reaches_the_others_with_zeros():
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    first, second = ZeroFill.apply(2, used * 2, used * 3, unused)
    assert second.tolist() == [3, 3]
    first.sum().backward()
    assert used.grad.tolist() == [2, 2]
    assert unused.grad.tolist() == [0, 0, 0]


def test_no_zeros_where_gradients_are_differentiated_themselves():
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    (output,) = ZeroFill.apply(1, used**3, unused)
    (gradient,) = torch.autograd.grad(output.sum(), used, create_graph=True)
    (gradient.sum() + output.sum()).backward()
    assert used.grad.tolist() == [9, 9]
    assert unused.grad is None
