"""Ranks with parts of a batch, of different sizes, against torch with the whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import hvd
from tests.cluster.hvd.ranks import on_ranks

ROWS = [3, 1, 4]
PLAIN = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}


def data(seed, shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + 50


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("shape", [(8, 5), (8, 5, 6), (8, 5, 3, 2)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_values_gradients_and_statistics_are_those_of_the_whole_batch(shape, momentum, affine):
    inputs, weights = data(1, shape), data(2, shape)

    def run(layer, own_inputs, own_weights):
        layer.double()
        for _ in range(2):
            x = own_inputs.clone().requires_grad_()
            y = layer(x)
            (y * own_weights).sum().backward()
        layer.eval()
        parameters = [p.grad for p in layer.parameters()]
        return y.detach(), x.grad, layer(own_inputs).detach(), list(layer.buffers()), parameters

    def program():
        rank = hvd.rank()
        layer = hvd.SyncBatchNorm(5, momentum=momentum, affine=affine)
        return run(layer, inputs.split(ROWS)[rank], weights.split(ROWS)[rank])

    expected = run(PLAIN[len(shape)](5, momentum=momentum, affine=affine), inputs, weights)
    results = on_ranks(3, program)
    for part in range(3):
        torch.testing.assert_close(torch.cat([each[part] for each in results]), expected[part])
    for result in results:
        torch.testing.assert_close(result[3], expected[3])
    # Each rank's parameters have the gradient of its own part, to be averaged by the optimizer.
    for number, gradient in enumerate(expected[4]):
        torch.testing.assert_close(sum(each[4][number] for each in results), gradient)


def test_half_precision_keeps_its_type():
    def program():
        layer = hvd.SyncBatchNorm(2)
        return layer(torch.full((2, 2), float(hvd.rank()), dtype=torch.bfloat16))

    zero, one = on_ranks(2, program)
    assert zero.dtype is torch.bfloat16
    torch.testing.assert_close(one, torch.ones_like(one), rtol=0, atol=0.01)
    torch.testing.assert_close(zero, -one)


def test_a_vector_is_refused_and_one_rank_needs_nobody():
    def refused():
        with pytest.raises(ValueError, match="2 dimensions"):
            hvd.SyncBatchNorm(2)(torch.ones(2))

    on_ranks(1, refused)
    on_ranks(2, refused)
