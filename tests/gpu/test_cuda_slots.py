"""Slots on CUDA streams, of one device and of two, do what the plain module does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallel
from lockstitch.nn.slots.cuda import on_stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.second = nn.Linear(256, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) * self.scale


@pytest.fixture(params=["cuda:0", "cuda:1"])
def model(request):
    if torch.device(request.param).index >= torch.cuda.device_count():
        pytest.skip("needs two CUDA devices")
    torch.manual_seed(0)
    model = DataParallel(Net().to("cuda:0"), ["cuda:0", on_stream(request.param)])
    yield model
    model.close()


def train(model, net, steps=5):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        x = torch.randn(512, 64, device="cuda:0", requires_grad=True)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            net.scale.mul_(0.9)
        losses.append((loss.item(), x.grad.sum().item()))
    return losses


def test_training_is_that_of_the_plain_module(model):
    plain = copy.deepcopy(model.module)
    expected, actual = train(plain, plain), train(model, model.module)
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=1e-4, atol=1e-4)
    for one, other in zip(model.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_parameters_are_copied_only_when_they_have_changed(model):
    x = torch.randn(8, 64, device="cuda:0")
    model(x)
    (slot,) = model.slots
    before = slot.statistics.parameter_bytes
    model(x)
    assert slot.statistics.parameter_bytes == before


def test_gradients_of_gradients(model):
    x = torch.randn(8, 64, device="cuda:0", requires_grad=True)

    def penalty(net):
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        model.module.zero_grad()
        gradient.pow(2).sum().backward()
        return model.module.first.weight.grad.clone()

    torch.testing.assert_close(penalty(model), penalty(model.module), rtol=1e-4, atol=1e-5)


def test_what_the_module_raises_is_raised(model):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(8, 3, device="cuda:0"))
