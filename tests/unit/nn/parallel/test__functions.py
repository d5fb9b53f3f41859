"""The four functions: values, gradients, gradients of gradients."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from lockstitch.nn.parallel._functions import Broadcast, Gather, ReduceAddCoalesced, Scatter


def tensor(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    numbers = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(3))
    return numbers.requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients_and_their_gradients(dtype: torch.dtype) -> None:
    x, y = tensor(4, 2, dtype=dtype), tensor(3, dtype=dtype)
    cases = [
        (lambda x, y: Broadcast.apply([0, 1], x * 1, y * 1), (x, y)),
        (lambda x, y: ReduceAddCoalesced.apply("cpu", 1, x * x, x * 3), (x, y)),
        (lambda x, y: Scatter.apply([0, 1, 2], None, 0, x * x), (x, y)),
        (lambda x, y: Scatter.apply([0, 1], [3, 1], 0, x * x), (x, y)),
        (lambda x, y: Gather.apply("cpu", 1, x * x, x), (x, y)),
    ]
    for function, arguments in cases:
        assert gradcheck(function, arguments)
        assert gradgradcheck(function, arguments)


def test_each_is_the_partners_backward() -> None:
    x = tensor(4)
    for outputs, partner in [
        (Broadcast.apply([0, 1], x), "ReduceAddCoalescedBackward"),
        (Scatter.apply([0, 1], None, 0, x), "GatherBackward"),
    ]:
        (gradient,) = torch.autograd.grad(
            sum((piece**2).sum() for piece in outputs), x, create_graph=True
        )
        assert gradient.grad_fn.name() == partner
        assert gradient.requires_grad


def test_on_one_device_a_broadcast_moves_nothing() -> None:
    x = tensor(4)
    assert {copy.data_ptr() for copy in Broadcast.apply([0, 1, 2], x)} == {x.data_ptr()}


def test_a_parameter_changed_before_backward_is_noticed() -> None:
    x = tensor(4)
    first, second = Broadcast.apply([0, 1], x)
    loss = (first**2).sum() + (second**2).sum()
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified inplace"):
        loss.backward()


def test_what_wants_no_gradient_gets_none() -> None:
    x, fixed = tensor(4), torch.ones(2)
    a, b, c, d = Broadcast.apply([0, 1], x, fixed)
    assert [t.requires_grad for t in (a, b, c, d)] == [True, False, True, False]
    assert Broadcast.apply([0, 1]) == ()


def test_a_place_that_uses_nothing_counts_as_zeros() -> None:
    x, y = tensor(4), tensor(2)
    copies = Broadcast.apply([0, 1], x, y)
    copies[2].sum().backward()
    assert torch.equal(x.grad, torch.ones(4, dtype=torch.float64))
    assert torch.equal(y.grad, torch.zeros(2, dtype=torch.float64))


def test_scalars_become_a_vector_with_a_warning() -> None:
    x, y = tensor(), tensor()
    with pytest.warns(UserWarning, match="were scalars"):
        joined = Gather.apply("cpu", 0, x, y)
    assert joined.shape == (2,)
    (joined * torch.tensor([2.0, 5.0])).sum().backward()
    assert (x.grad.item(), y.grad.item()) == (2, 5)


def test_sparse_gradients_stay_sparse() -> None:
    table = torch.nn.Parameter(torch.randn(5, 2))
    a, b = Broadcast.apply([0, 1], table)
    loss = sum(
        torch.nn.functional.embedding(torch.tensor([i]), w, sparse=True).sum()
        for i, w in ((1, a), (3, b))
    )
    loss.backward()
    assert table.grad.is_sparse
    assert table.grad.to_dense().sum(1).tolist() == [0, 2, 0, 2, 0]
