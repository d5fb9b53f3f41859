"""Gradients are clipped as torch clips those of one process, in one or two messages to an owner."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from lockstitch import autograd, rpc
from lockstitch.optim import (
    DistributedOptimizer,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from lockstitch.optim.clipping import NormsOfDtype, join_norms
from lockstitch.testing.cluster import LocalCluster

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float64, torch.float16)


class Leaf:
    """A parameter, with a gradient in any context that wants one."""

    def __init__(self, number: int, dtype: torch.dtype, *, is_used: bool = True) -> None:
        generator = torch.Generator().manual_seed(number)
        shape = [(3, 2), (5,), (), (2, 1, 4), (0, 3)][number % 5]
        self.gradient = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        self.leaf = nn.Parameter(torch.zeros(shape, dtype=dtype))
        self.is_used = is_used

    def reference(self) -> rpc.RRef[torch.Tensor]:
        return rpc.RRef(self.leaf)

    def loss(self) -> torch.Tensor:
        """A number whose gradient is what was drawn."""
        return ((self.leaf * self.gradient).sum() if self.is_used else torch.zeros(())).double()

    def clipped(self, context_id: int) -> torch.Tensor | None:
        return autograd.get_gradients(context_id).get(self.leaf)


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster[0].active():
        yield cluster


def leaves_of(count: int, *, unused: int = -1) -> tuple[list, list[Leaf]]:
    """The same leaves, on workers and here."""
    kinds = [(number, DTYPES[number % 5]) for number in range(count)]
    there = [
        rpc.remote(f"worker{number % 3}", Leaf, (number, dtype), {"is_used": number != unused})
        for number, dtype in kinds
    ]
    return there, [Leaf(number, dtype, is_used=number != unused) for number, dtype in kinds]


def go_backward(context_id: int, there: list) -> None:
    used = [loss for leaf in there if (loss := leaf.rpc_sync().loss()).requires_grad]
    if used:
        autograd.backward(context_id, [sum(used)])


def gradients_of(here: list[Leaf]) -> list[nn.Parameter]:
    for each in here:
        each.leaf.grad = each.gradient.clone() if each.is_used else None
    return [each.leaf for each in here]


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, 0.5, float("inf"), 2, 0.0])
@pytest.mark.parametrize("limit", [0.1, 1e6])
@pytest.mark.parametrize("foreach", [None, False])
def test_norm_and_gradients_are_torchs(cluster, norm_type, limit, foreach) -> None:
    there, here = leaves_of(4 if norm_type in (float("inf"), 0.0) else 5, unused=1)
    expected = nn.utils.clip_grad_norm_(gradients_of(here), limit, norm_type, foreach=foreach)
    with autograd.context() as context_id:
        go_backward(context_id, there)
        references = [leaf.rpc_sync().reference() for leaf in there]
        assert torch.equal(get_total_norm(references, context_id, norm_type), expected)
        norm = clip_grad_norm_(references, context_id, limit, norm_type, foreach=foreach)
        assert norm.dtype == expected.dtype
        assert torch.equal(norm, expected)
        for ours, plain in zip(there, here, strict=True):
            found = ours.rpc_sync().clipped(context_id)
            assert (found is None) == (plain.leaf.grad is None)
            assert found is None or torch.equal(found, plain.leaf.grad)


def test_values_are_clipped_in_one_message(cluster) -> None:
    there, here = leaves_of(5, unused=2)
    nn.utils.clip_grad_value_(gradients_of(here), 0.25)
    with autograd.context() as context_id:
        go_backward(context_id, there)
        references = [leaf.rpc_sync().reference() for leaf in there]
        before = cluster.traffic()
        clip_grad_value_(references, context_id, 0.25)
        assert (cluster.traffic() - before).kinds["Call"] == 2  # and one to itself
        for ours, plain in zip(there, here, strict=True):
            found = ours.rpc_sync().clipped(context_id)
            assert plain.leaf.grad is None or torch.equal(found, plain.leaf.grad)


def test_an_owner_is_asked_once_and_once_more_if_there_is_something_to_clip(cluster) -> None:
    there, _ = leaves_of(4)
    optimizer = DistributedOptimizer(
        optim.SGD, [leaf.rpc_sync().reference() for leaf in there], lr=0.1
    )
    with autograd.context() as context_id:
        go_backward(context_id, there)
        for limit, expected in ((1e6, 2), (0.1, 4), (0.2, 2)):
            before = cluster.traffic()
            clip_grad_norm_(optimizer, context_id, limit)
            assert (cluster.traffic() - before).kinds["Call"] == expected  # and itself


def test_without_any_gradient_the_norm_is_zero(cluster) -> None:
    there, _ = leaves_of(2)
    references = [leaf.rpc_sync().reference() for leaf in there]
    with autograd.context() as context_id:
        assert clip_grad_norm_(references, context_id, 1.0) == 0
        assert clip_grad_norm_([], context_id, 1.0) == 0
        clip_grad_value_(references[0], context_id, 1.0)


def test_a_norm_that_is_not_finite(cluster) -> None:
    leaf = rpc.remote("worker1", Leaf, (0, torch.float32))
    reference = leaf.rpc_sync().reference()
    with autograd.context() as context_id:
        autograd.backward(context_id, [leaf.rpc_sync().loss() * torch.inf])
        with pytest.raises(RuntimeError, match=r"order 2\.0 for gradients .* is non-finite"):
            clip_grad_norm_(reference, context_id, 1.0, error_if_nonfinite=True)
        assert leaf.rpc_sync().clipped(context_id).isinf().all()
        assert clip_grad_norm_(reference, context_id, 1.0).isinf()
        assert leaf.rpc_sync().clipped(context_id).isnan().all()


def test_a_limit_that_is_no_number_is_multiplied_by_as_in_torch(cluster) -> None:
    leaf, plain = rpc.remote("worker1", Leaf, (0, torch.float32)), Leaf(0, torch.float32)
    nn.utils.clip_grad_norm_(gradients_of([plain]), float("nan"))
    with autograd.context() as context_id:
        go_backward(context_id, [leaf])
        clip_grad_norm_(leaf.rpc_sync().reference(), context_id, float("nan"))
        assert leaf.rpc_sync().clipped(context_id).isnan().equal(plain.leaf.grad.isnan())


def test_a_known_norm_scales_several_sets_of_parameters(cluster) -> None:
    there, here = leaves_of(2)
    nn.utils.clip_grads_with_norm_(gradients_of(here), 1.0, torch.tensor(20.0))
    with autograd.context() as context_id:
        go_backward(context_id, there)
        for ours, plain in zip(there, here, strict=True):
            reference = ours.rpc_sync().reference()
            clip_grads_with_norm_(reference, context_id, 1.0, torch.tensor(20.0))
            assert torch.equal(ours.rpc_sync().clipped(context_id), plain.leaf.grad)


def test_a_parameter_that_is_named_twice_counts_twice_as_in_torch(cluster) -> None:
    leaf, plain = rpc.remote("worker1", Leaf, (0, torch.float64)), Leaf(0, torch.float64)
    gradients_of([plain])
    expected = nn.utils.clip_grad_norm_([plain.leaf, plain.leaf], 0.1)
    with autograd.context() as context_id:
        go_backward(context_id, [leaf])
        twice = [leaf.rpc_sync().reference() for _ in range(2)]
        assert torch.equal(clip_grad_norm_(twice, context_id, 0.1), expected)
        assert torch.equal(leaf.rpc_sync().clipped(context_id), plain.leaf.grad)


class Table(Leaf):
    def loss(self) -> torch.Tensor:
        return nn.functional.embedding(torch.tensor([1]), self.leaf, sparse=True).sum()


def test_sparse_gradients_are_clipped_or_refused_as_torch_does(cluster) -> None:
    """Torch refuses them up to 2.14."""
    table, here = rpc.remote("worker1", Table, (0, torch.float32)), Table(0, torch.float32)
    here.loss().backward()
    with autograd.context() as context_id:
        autograd.backward(context_id, [table.rpc_sync().loss()])
        reference = table.rpc_sync().reference()
        try:
            expected = nn.utils.clip_grad_norm_([here.leaf], 0.1)
        except NotImplementedError:
            with pytest.raises(NotImplementedError, match="Sparse"):
                clip_grad_norm_(reference, context_id, 0.1)
            return
        assert torch.equal(clip_grad_norm_(reference, context_id, 0.1), expected)
        clipped = table.rpc_sync().clipped(context_id)
        assert torch.equal(clipped.to_dense(), here.leaf.grad.to_dense())


def test_unknown_contexts_and_tensors_are_refused(cluster) -> None:
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 5"):
        clip_grad_norm_([], 5, 1.0)
    with autograd.context() as context_id, pytest.raises(TypeError, match="is a list of ref"):
        clip_grad_norm_([torch.ones(1)], context_id, 1.0)  # type: ignore[list-item]


def test_norms_are_joined_in_the_order_of_parameters() -> None:
    def told(dtype: torch.dtype, numbers: list[int], *norms: float) -> NormsOfDtype:
        return NormsOfDtype(dtype, numbers, torch.tensor(norms, dtype=dtype))

    first = [told(torch.float64, [0, 2], 3.0, 0.1)]
    second = [told(torch.float64, [0], 4.0)]
    joined = join_norms([first, second, []], [[0, 7, 2], [1], [4]], 2.0)
    expected = torch.linalg.vector_norm(torch.tensor([3.0, 4.0, 0.1], dtype=torch.float64))
    assert torch.equal(joined, expected)
    assert torch.equal(join_norms([[]], [[0]], 2.0), torch.tensor(0.0))
