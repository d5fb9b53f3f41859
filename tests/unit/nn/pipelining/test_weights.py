"""The weighted losses of micro-batches add up to the loss of the batch."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from lockstitch.nn.pipelining.weights import weights_of

F = nn.functional
SIZES = [3, 3, 2]
CLASSES = torch.tensor([0, -100, 2, -100, -100, 1, 0, 2])
HEAVY = torch.tensor([0.5, 2.0, 4.0])
ZERO_LEFT_OUT = CLASSES.clamp(min=0)

LOSSES = {
    "mean": (F.mse_loss, torch.randn(8, 3)),
    "sum": (nn.MSELoss(reduction="sum"), torch.randn(8, 3)),
    "partial sum": (partial(F.mse_loss, reduction="sum"), torch.randn(8, 3)),
    "function": (F.cross_entropy, CLASSES),
    "module": (nn.CrossEntropyLoss(), CLASSES),
    "weight": (nn.CrossEntropyLoss(HEAVY, label_smoothing=0.1), CLASSES),
    "partial": (partial(F.cross_entropy, ignore_index=0), ZERO_LEFT_OUT),
    "partial weight": (partial(F.nll_loss, weight=HEAVY), CLASSES),
    "partial module": (partial(nn.CrossEntropyLoss(HEAVY, ignore_index=0)), ZERO_LEFT_OUT),
    "partial sum of a module": (partial(nn.MSELoss(reduction="sum")), torch.randn(8, 3)),
    "nll": (nn.NLLLoss(ignore_index=0), ZERO_LEFT_OUT),
    "probabilities": (nn.CrossEntropyLoss(HEAVY), torch.rand(8, 3)),
    "summed classes": (nn.CrossEntropyLoss(reduction="sum"), CLASSES),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_add_up(name):
    loss_fn, target = LOSSES[name]
    output = torch.randn(8, 3)
    targets = target.split(SIZES)
    weights = weights_of(SIZES, targets, loss_fn, None)
    losses = [
        loss_fn(*each) * weight
        for *each, weight in zip(output.split(SIZES), targets, weights, strict=True)
        if weight
    ]
    torch.testing.assert_close(sum(losses), loss_fn(output, target))


def test_targets_of_several_dimensions_are_counted_too():
    target = CLASSES.view(4, 2)
    output = torch.randn(4, 3, 2)
    weights = weights_of([3, 1], target.split([3, 1]), F.cross_entropy, "mean")
    pairs = zip(output.split([3, 1]), target.split([3, 1]), weights, strict=True)
    found = sum(F.cross_entropy(*each) * weight for *each, weight in pairs)
    torch.testing.assert_close(found, F.cross_entropy(output, target))


def test_rows_count_where_nothing_else_is_known():
    assert weights_of([3, 1], None, None, None) == [0.75, 0.25]
    assert weights_of([3, 1], [{"y": 1}] * 2, F.cross_entropy, None) == [0.75, 0.25]
    assert weights_of([3, 1], [1, 3], F.mse_loss, float) == [0.25, 0.75]


def test_micro_batches_without_terms_count_for_nothing():
    nothing = torch.full((2,), -100)
    assert weights_of([2, 2], [nothing, torch.tensor([1, 2])], F.nll_loss, None) == [0.0, 1.0]


def test_a_mean_without_any_terms_is_not_a_number():
    nothing = torch.full((2,), -100)
    assert all(map(math.isnan, weights_of([2, 2], [nothing, nothing], F.nll_loss, None)))
    assert weights_of([2, 2], [nothing, nothing], nn.NLLLoss(reduction="sum"), None) == [1.0, 1.0]
