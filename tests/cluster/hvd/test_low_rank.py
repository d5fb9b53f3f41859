from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lockstitch import hvd
from tests.cluster.hvd.ranks import on_ranks


def wrapped(weight, rank=1, **options):
    return hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        [("w", weight)],
        compression=hvd.Compression.powersgd(rank=rank),
        **options,
    )


def matrix(rank):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_a_matrix_of_low_rank_arrives_whole(op):
    column, row = torch.arange(1.0, 9.0)[:, None], torch.arange(1.0, 7.0)[None]

    def program():
        weight = nn.Parameter(torch.zeros(8, 6))
        optimizer = wrapped(weight, op=op)
        (weight * column * row * (1 + hvd.rank())).sum().backward()
        optimizer.step()
        return weight.detach()

    factor = 1.5 if op is hvd.Average else 3.0
    for weight in on_ranks(2, program):
        torch.testing.assert_close(weight, -factor * column * row)


def test_what_is_left_out_comes_later():
    """The sum of what arrives comes near to the sum of the gradients, though each is of rank 1."""

    def program():
        weight = nn.Parameter(torch.zeros(8, 6))
        optimizer = wrapped(weight)
        for _ in range(60):
            optimizer.zero_grad()
            (weight * matrix(hvd.rank())).sum().backward()
            optimizer.step()
        return weight.detach() / 60

    expected = -(matrix(0) + matrix(1)) / 2
    first, second = on_ranks(2, program)
    assert torch.equal(first, second)
    assert (first - expected).norm() < 0.2 * expected.norm()


def test_vectors_and_small_matrices_go_as_they_are():
    def program():
        parameters = [nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(2, 2))]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=1.0),
            compression=hvd.Compression.powersgd(),
            groups=1,
        )
        sum(((1 + hvd.rank()) * each).sum() for each in parameters).backward()
        optimizer.step()
        assert "compression" in optimizer.state_dict()
        return [each.flatten()[0].item() for each in parameters]

    assert on_ranks(2, program) == [[-1.5, -1.5]] * 2


def test_training_goes_on_where_the_state_was_saved():
    def steps(optimizer, weight, count):
        for step in range(count):
            optimizer.zero_grad()
            (weight * matrix(hvd.rank() + 2 * step)).sum().backward()
            optimizer.step()

    def program():
        weight = nn.Parameter(torch.zeros(8, 6))
        optimizer = wrapped(weight)
        steps(optimizer, weight, 2)
        saved, values = copy.deepcopy(optimizer.state_dict()), weight.detach().clone()
        steps(optimizer, weight, 2)
        again = nn.Parameter(values)
        resumed = wrapped(again)
        resumed.load_state_dict(saved)
        steps(resumed, again, 2)
        return torch.equal(weight, again)

    assert on_ranks(2, program) == [True, True]
