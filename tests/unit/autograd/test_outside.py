"""Tensors that came outside of any context."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.graph import Entry
from lockstitch.autograd.outside import OutsideTensors


def roots(*tensors):
    return Entry(None, tuple(get_gradient_edge(tensor) for tensor in tensors))


def leaf():
    return torch.ones(2, requires_grad=True)


def test_a_pass_that_ends_in_one_warns_once_for_each_call():
    outside, one, other = OutsideTensors(), leaf(), leaf()
    outside.note(one, "worker 'ps' has returned from a call of f")
    outside.note(other, "was fetched")
    root = roots((one * leaf()).sum(), one * other)
    with pytest.warns(UserWarning, match="outside of any autograd context") as told:
        outside.warn_of(root)
    texts = sorted(str(each.message) for each in told)
    assert len(texts) == 2
    assert "that was fetched, outside" in texts[0]
    assert "that worker 'ps' has returned from a call of f, outside" in texts[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outside.warn_of(root)


def test_others_and_parameters_are_nothing_to_warn_of():
    outside, parameter, known = OutsideTensors(), nn.Parameter(torch.ones(2)), leaf()
    outside.note(parameter, "was sent")
    outside.note(known, "is not in this graph")
    outside.warn_of(roots(parameter * leaf()))


def test_what_is_gone_is_forgotten():
    outside, tensor = OutsideTensors(), leaf()
    outside.note(tensor, "was sent")
    assert repr(outside) == "<OutsideTensors · 1>"
    del tensor
    assert repr(outside) == "<OutsideTensors · 0>"


def test_one_that_only_the_graph_holds_is_remembered():
    outside, tensor = OutsideTensors(), leaf()
    outside.note(tensor, "was sent")
    root = roots(tensor * 2)
    del tensor
    with pytest.warns(UserWarning, match="was sent, outside"):
        outside.warn_of(root)
