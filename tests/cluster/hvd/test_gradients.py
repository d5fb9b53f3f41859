"""Gradients through operations, as one process that holds all ranks' tensors would compute them."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from lockstitch import hvd
from lockstitch.hvd.gradients import AllReduce
from tests.cluster.hvd.ranks import on_ranks

SIZE = 3


def weights(rank, *shape):
    """What each rank's loss multiplies with: differs between ranks, so that mistakes show."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def leaf(*shape):
    return torch.ones(*shape, dtype=torch.float64, requires_grad=True)


def gradient_of(tensor, result, weight):
    (result * weight).sum().backward()
    return tensor.grad


@pytest.mark.parametrize("name", [None, "x"])
@pytest.mark.parametrize(("op", "share"), [(hvd.Sum, 1.0), (hvd.Average, 1 / SIZE)])
def test_allreduce(op, share, name):
    def program():
        x = leaf(4)
        y = hvd.allreduce(x, op=op, name=name, prescale_factor=2.0)
        return gradient_of(x, y, weights(hvd.rank(), 4))

    expected = 2.0 * share * sum(weights(rank, 4) for rank in range(SIZE))
    for gradient in on_ranks(SIZE, program):
        torch.testing.assert_close(gradient, expected)


def test_grouped_allreduce_also_where_a_part_is_not_used():
    def program():
        x, y = leaf(2), leaf(3)
        summed, _unused = hvd.grouped_allreduce([x, y], op=hvd.Sum)
        gradient_of(x, summed, weights(hvd.rank(), 2))
        return x.grad, y.grad

    expected = sum(weights(rank, 2) for rank in range(SIZE))
    for of_x, of_y in on_ranks(SIZE, program):
        torch.testing.assert_close(of_x, expected)
        assert torch.equal(of_y, torch.zeros_like(of_y))


def test_compressed_allreduce_has_a_gradient():
    def program():
        x = torch.ones(2, requires_grad=True)
        y = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.bf16)
        return gradient_of(x, y, torch.tensor([1.0, 2.0])).tolist()

    assert on_ranks(2, program) == [[2.0, 4.0]] * 2


def test_allgather_takes_each_ranks_rows_of_the_average():
    rows = [rank + 1 for rank in range(SIZE)]

    def program():
        x = leaf(rows[hvd.rank()], 2)
        return gradient_of(x, hvd.allgather(x), weights(hvd.rank(), sum(rows), 2))

    average = sum(weights(rank, sum(rows), 2) for rank in range(SIZE)) / SIZE
    for gradient, expected in zip(on_ranks(SIZE, program), average.split(rows), strict=True):
        torch.testing.assert_close(gradient, expected)


def test_broadcast_brings_the_average_to_the_root():
    def program():
        x = leaf(2)
        return gradient_of(x, hvd.broadcast(x, 1), weights(hvd.rank(), 2))

    average = sum(weights(rank, 2) for rank in range(SIZE)) / SIZE
    for rank, gradient in enumerate(on_ranks(SIZE, program)):
        torch.testing.assert_close(gradient, average if rank == 1 else torch.zeros_like(average))


def test_alltoall_sends_gradients_back():
    splits = [[1, 0, 2], [0, 1, 1], [3, 0, 0]]

    def program():
        x = leaf(sum(splits[hvd.rank()]))
        y, _ = hvd.alltoall(x, splits=splits[hvd.rank()])
        return gradient_of(x, y, weights(hvd.rank(), len(y)))

    arriving = [sum(row[rank] for row in splits) for rank in range(SIZE)]
    pieces = [
        weights(rank, arriving[rank]).split([row[rank] for row in splits]) for rank in range(SIZE)
    ]
    for rank, gradient in enumerate(on_ranks(SIZE, program)):
        torch.testing.assert_close(gradient, torch.cat([each[rank] for each in pieces]))


@pytest.mark.parametrize(("op", "factor"), [(hvd.Sum, SIZE), (hvd.Average, 1)])
@pytest.mark.parametrize("is_group", [False, True])
def test_reducescatter_gathers_gradients(op, factor, is_group):
    def program():
        x = leaf(SIZE, 2)
        if is_group:
            (y,) = hvd.grouped_reducescatter([x], op=op)
        else:
            y = hvd.reducescatter(x, op=op)
        return gradient_of(x, y, weights(hvd.rank(), 1, 2))

    expected = torch.cat([weights(rank, 1, 2) for rank in range(SIZE)]) * factor
    for gradient in on_ranks(SIZE, program):
        torch.testing.assert_close(gradient, expected)


def test_gradients_have_gradients():
    def program():
        x = leaf(1)
        y = hvd.allreduce(x, op=hvd.Sum)
        (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first.item(), second.item()

    # With n ranks at x = 1: y = n; first = n · 3y² ; second = n · (n · 6y).
    assert on_ranks(2, program) == [(24.0, 48.0)] * 2


@pytest.mark.parametrize("operation", [hvd.allreduce, hvd.reducescatter])
def test_what_has_no_gradient_says_so(operation):
    def program():
        y = operation(leaf(2), op=hvd.Max)
        with pytest.raises(RuntimeError, match="no gradient"):
            y.sum().backward()

    on_ranks(2, program)


def test_tensor_without_a_gradient_is_reduced_without_a_node(monkeypatch):
    def program():
        for is_recorded in (False, True):
            x = torch.full((2,), hvd.rank() + 1.0, requires_grad=is_recorded)
            with torch.set_grad_enabled(not is_recorded):
                y = hvd.allreduce(x, op=hvd.Sum)
            assert y.tolist() == [3.0, 3.0]
            assert y.grad_fn is None

    monkeypatch.setattr(AllReduce, "apply", None)
    on_ranks(2, program)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # torch's own forward mode
def test_no_tangent_is_lost():
    def program():
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
            with pytest.raises(RuntimeError, match="jvp"):
                hvd.allreduce(dual, op=hvd.Sum)

    on_ranks(1, program)
