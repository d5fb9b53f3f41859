"""`DataParallelCriterion` against the loss of the plain module, for each kind of slots."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallelCriterion, Replicate

PLACES = [None, ["cpu"], ["thread"] * 2, ["fork"] * 3]


@pytest.fixture
def wrap():
    made = []

    def make(*arguments, **options):
        made.append(DataParallelCriterion(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
    made.clear()


class Net(nn.Linear):
    def forward(self, x, shift=0.0):
        return super().forward(x) + shift


@pytest.mark.parametrize("device_ids", PLACES, ids=str)
@pytest.mark.parametrize("rows", [6, 7])
def test_loss_and_gradients_are_the_plain_modules(wrap, device_ids, rows):
    net, criterion = Net(4, 3).double(), nn.CrossEntropyLoss()
    twin = copy.deepcopy(net)
    model = wrap(net, criterion, device_ids)
    x, shift = torch.randn(rows, 4).double(), torch.randn(3).double()
    targets = torch.arange(rows) % 3

    for _ in range(2):
        loss = model(x, targets, shift=Replicate(shift))
        expected = criterion(twin(x, shift), targets)
        torch.testing.assert_close(loss, expected)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(net.weight.grad, twin.weight.grad)
        torch.testing.assert_close(net.bias.grad, twin.bias.grad)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, a, b):
        return {"sum": (a + b).T * self.scale}


def difference(output, targets):
    return (output["sum"] - targets["wanted"].T).pow(2).mean()


def test_inputs_and_targets_may_be_structures_cut_along_another_dimension(wrap):
    net = TwoInputs()
    model = wrap(net, difference, ["thread"] * 2, dim=1)
    a, b, wanted = torch.randn(3, 2, 5)
    loss = model((a, b), {"wanted": wanted})
    torch.testing.assert_close(loss, difference(net(a, b), {"wanted": wanted}))


@pytest.mark.parametrize("device_ids", [["cpu"], ["thread"] * 2], ids=str)
def test_a_loss_for_each_row_is_refused(wrap, device_ids):
    model = wrap(Net(4, 3), nn.CrossEntropyLoss(reduction="none"), device_ids)
    with pytest.raises(ValueError, match=r"shape \(\d,\).*reduction"):
        model(torch.randn(6, 4), torch.arange(6) % 3)


def test_without_a_tensor_there_is_nothing_to_cut(wrap):
    model = wrap(Net(4, 3), nn.CrossEntropyLoss(), ["thread"] * 2)
    with pytest.raises(ValueError, match="no tensor to cut"):
        model(1, 2)
