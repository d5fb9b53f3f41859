"""Pins how many torch says hold a tensor."""

from __future__ import annotations

import torch
from torch.autograd.graph import get_gradient_edge as edge_of

from lockstitch.torch_internals.autograd import run_engine
from lockstitch.torch_internals.owners import is_sole_owner, storage_users, users_of


def captured_from(function):
    x = torch.ones(4, requires_grad=True)
    return run_engine([edge_of(function(x))], [torch.ones(4)], [edge_of(x)], False)


def test_a_gradient_that_nobody_else_holds_is_owned():
    assert is_sole_owner(captured_from(lambda x: x * 2), 0)


def test_a_gradient_that_a_hook_keeps_is_not_owned():
    kept = []

    def keep(x):
        x.register_hook(kept.append)
        return x * 2

    captured = captured_from(keep)
    assert not is_sole_owner(captured, 0)
    kept.clear()
    assert is_sole_owner(captured, 0)


def test_a_gradient_of_which_a_view_is_kept_is_not_owned():
    kept = []

    def keep(x):
        x.register_hook(lambda gradient: kept.append(gradient.view(2, 2)))
        return x * 2

    assert not is_sole_owner(captured_from(keep), 0)


def test_a_gradient_that_is_a_view_of_what_nobody_holds_is_owned():
    weight = torch.ones(3, 2, requires_grad=True)
    y = torch.nn.functional.linear(torch.ones(4, 2), weight)
    captured = run_engine([edge_of(y)], [torch.ones(4, 3)], [edge_of(weight)], False)
    assert captured[0]._is_view()
    assert is_sole_owner(captured, 0)


def test_a_gradient_that_is_a_view_of_what_somebody_holds_is_not_owned():
    base, other = torch.ones(4), torch.ones(4)
    assert not is_sole_owner([base.view(2, 2)], 0)
    kept = [other.view(4, 1)]
    view = [other.view(2, 2)]
    del other
    assert not is_sole_owner(view, 0)
    kept.clear()
    assert is_sole_owner(view, 0)


def test_a_gradient_that_serves_two_leaves_is_not_owned():
    x, other = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    captured = run_engine(
        [edge_of(x + other)],
        [torch.ones(4)],
        [edge_of(x), edge_of(other)],
        False,
    )
    assert not is_sole_owner(captured, 0)
    assert not is_sole_owner(captured, 1)


def test_each_view_counts_among_those_who_look_at_the_memory():
    tensor = torch.zeros(4)
    lone = storage_users(tensor)
    view = tensor.view(2, 2)
    assert storage_users(tensor) == storage_users(view) == lone + 1
    storages = [tensor.untyped_storage(), torch.zeros(1).untyped_storage()]
    counted = users_of(storages)
    array = tensor.numpy()
    assert users_of(storages) == [counted[0] + 1, counted[1]]
    del array, view
    assert users_of(storages) == [counted[0] - 1, counted[1]]
