"""The loss of each part, and their mean."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallelCriterion, Replicate
from lockstitch.nn.criterion import ModuleWithLoss

X, TARGETS = torch.arange(6.0).reshape(3, 2), torch.ones(3, 2)


def mean_difference(output, targets):
    return (output - targets).mean()


def plain(criterion=mean_difference, **options):
    return DataParallelCriterion(nn.Identity(), criterion, ["cpu"], **options)


def test_a_part_returns_its_loss_and_how_many_rows_it_is_of():
    module = ModuleWithLoss(nn.Identity(), mean_difference)
    loss, rows = module((X,), TARGETS, {}, torch.empty(3))
    assert (loss.item(), rows) == (1.5, 3)


def test_a_part_whose_loss_has_dimensions_says_what_is_wanted():
    module = ModuleWithLoss(nn.Identity(), nn.MSELoss(reduction="none"))
    with pytest.raises(ValueError, match=r'shape \(3, 2\).* as with reduction="mean"'):
        module((X,), TARGETS, {}, torch.empty(3))


def test_parts_weigh_as_much_as_they_have_rows():
    parts = [(torch.tensor(1.0), 3), (torch.tensor(5.0), 1)]
    assert plain().gather(parts, "cpu").item() == 2.0


def test_one_place_is_the_plain_loss_for_every_form_of_the_arguments():
    expected = mean_difference(X, TARGETS)
    assert torch.equal(plain()(X, TARGETS), expected)
    assert torch.equal(plain()((X,), TARGETS), expected)
    model = plain(lambda output, targets: mean_difference(output, targets["y"][0]))
    assert torch.equal(model(X, {"y": [TARGETS]}), expected)
    assert torch.equal(model(X, {"y": [Replicate(TARGETS)]}), expected)


@pytest.mark.parametrize("inputs", [(), (3,), Replicate(X), torch.tensor(1.0)], ids=str)
def test_something_must_be_there_to_cut(inputs):
    with pytest.raises(ValueError, match="no tensor to cut"):
        plain()(inputs, None)


def test_rows_are_counted_along_the_dimension_that_is_cut():
    seen = []

    def note(output, targets):
        seen.append(output.shape)
        return mean_difference(output, targets)

    model = DataParallelCriterion(nn.Identity(), note, ["thread"] * 2, dim=1)
    loss = model(X, TARGETS)
    model.close()
    assert seen == [(3, 1), (3, 1)]
    assert torch.equal(loss, mean_difference(X, TARGETS))
