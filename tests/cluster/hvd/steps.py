"""A model, its batches and its steps, for ranks and for one process that they are compared with."""

from __future__ import annotations

import torch
from torch import nn

from lockstitch import hvd

STEPS = 4
WITHOUT_SKIPPING = r"ignore:optimizer\.step\(\) called without"
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.05),
}


def model():
    generator = torch.Generator().manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def batch(step, rows=12):
    generator = torch.Generator().manual_seed(100 + step)
    inputs = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 3, (rows,), generator=generator)


def mine(tensor):
    return tensor.chunk(hvd.size())[hvd.rank()]


def loss_of(net, inputs, labels):
    return nn.functional.cross_entropy(net(inputs), labels)


def values(net):
    return [parameter.detach().clone() for parameter in net.parameters()]


def in_one_process(make, steps=STEPS):
    net = model()
    optimizer = make(net.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(net, *batch(step)).backward()
        optimizer.step()
    return values(net)


def assert_all_are(expected, results, **tolerance):
    for result in results:
        for ours, theirs in zip(result, expected, strict=True):
            torch.testing.assert_close(ours, theirs, **tolerance)
    for result in results[1:]:
        for ours, first in zip(result, results[0], strict=True):
            assert torch.equal(ours, first)
