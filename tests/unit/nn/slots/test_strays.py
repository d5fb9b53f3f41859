"""Leaves that somebody keeps and nobody will ask about are found in a graph."""

from __future__ import annotations

import pytest
import torch

from lockstitch.nn.slots.strays import check_for_strays


def leaf(*shape):
    return torch.ones(*shape, requires_grad=True)


def test_known_leaves_are_none():
    weight, x = leaf(3), leaf(2, 3)
    check_for_strays([(weight * x).sum(), weight, torch.ones(2)], [weight, x])


def test_one_that_is_kept_is_found_however_deep():
    weight, kept = leaf(3), leaf(2, 3)
    hidden = (weight * 2).tanh()
    for _ in range(50):
        hidden = hidden * 1.01 + kept.sum()
    with pytest.raises(RuntimeError, match=r"shape \(2, 3\) .* would be lost"):
        check_for_strays([weight * 1, hidden], [weight])


def test_an_output_may_be_one_itself():
    kept = leaf(5)
    with pytest.raises(RuntimeError, match=r"shape \(5,\)"):
        check_for_strays([kept], [])


def test_one_that_only_the_graph_keeps_is_none():
    weight = leaf(3)
    output = weight * leaf(3) + leaf(1).exp()
    check_for_strays([output], [weight])
    output.sum().backward()
