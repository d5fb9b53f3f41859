"""Random numbers."""

from __future__ import annotations

import torch
from torch import nn

from tests.parity.behaviours.pieces import own


@own
def random_numbers_follow_the_seed(wrap):
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.ones(64, 4)
    model = wrap(module)

    def run(seed):
        torch.manual_seed(seed)
        output = model(x)
        return output, torch.autograd.grad(output.sum(), list(module.parameters())), model(x)

    torch.testing.assert_close(run(1), run(1), rtol=0, atol=0)
    assert not torch.equal(run(1)[0], run(2)[0])
    first, second = run(1)[0].eq(0).chunk(2)
    assert not torch.equal(first, second)  # slots differ
    assert not torch.equal(run(1)[0], run(1)[2])  # and so do calls


@own
def the_caller_draws_what_slot_0_draws(wrap):
    module, x = nn.Dropout(0.5), torch.ones(8, 4)
    model = wrap(module)
    torch.manual_seed(5)
    output, after = model(x), torch.rand(3)
    torch.manual_seed(5)
    torch.testing.assert_close(module(x[:4]), output[:4])
    torch.testing.assert_close(torch.rand(3), after)
