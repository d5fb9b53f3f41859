"""Inputs of `grad`, here and on other workers."""

from __future__ import annotations

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.autograd.context import set_current_context
from lockstitch.testing.cluster import LocalCluster

OWNED = {}


@pytest.fixture
def cluster():
    OWNED["w"] = torch.tensor([2.0, 3.0], requires_grad=True)
    OWNED["v"] = torch.tensor([5.0, 7.0], requires_grad=True)
    OWNED["plain"] = torch.ones(2)
    with LocalCluster(3) as running, running[0].active():
        yield running
    OWNED.clear()


def owned(name):
    return OWNED[name]


def reference(worker, name):
    return rpc.remote(worker, owned, args=(name,))


def scale(x, name):
    return x * OWNED[name]


def test_tensors_and_references_have_results_of_their_kind(cluster):
    x = torch.ones(2, requires_grad=True)
    w, v = reference("worker1", "w"), reference("worker2", "v")
    with autograd.context() as context_id:
        h = rpc.rpc_sync("worker1", scale, args=(x, "w"))
        y = rpc.rpc_sync("worker2", scale, args=(h, "v"))
        of_w, of_x, of_v, of_h = autograd.grad(context_id, y.sum(), [w, x, v, h])
        assert of_x.tolist() == [10.0, 21.0]
        assert of_h.tolist() == [5.0, 7.0]
        assert [each.owner().name for each in (of_w, of_v)] == ["worker1", "worker2"]
        assert of_w.to_here().tolist() == [5.0, 7.0]
        assert of_v.to_here().tolist() == [2.0, 3.0]
        assert autograd.get_gradients(context_id) == {}
    assert x.grad is None


def test_an_owner_that_has_no_part_in_the_context_has_no_gradient(cluster):
    x = torch.ones(2, requires_grad=True)
    v = reference("worker2", "v")
    with autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", scale, args=(x, "w")).sum()
        with pytest.raises(RuntimeError, match=r"inputs\[1\] appears to not have been used"):
            autograd.grad(context_id, y, [x, v], retain_graph=True)
        found, none = autograd.grad(context_id, y, [x, v], allow_unused=True)
    assert found.tolist() == [2.0, 3.0]
    assert none is None


def test_outside_of_the_block_it_works_too(cluster):
    x = torch.ones(2, requires_grad=True)
    context = autograd._new_context()
    y = rpc.rpc_sync("worker1", scale, args=(x, "w")).sum()
    set_current_context(None)
    (found,) = autograd.grad(context._context_id(), y, reference("worker1", "w"))
    autograd._release_context(context._context_id())
    assert found.to_here().tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        (
            "plain",
            RuntimeError,
            r"the value of inputs\[0\], a tensor of shape \(2,\).*require grad",
        ),
        ("words", TypeError, r"inputs\[0\] refers to a str, not to a tensor"),
    ],
)
def test_references_to_other_things_are_refused_by_their_owner(cluster, name, error, words):
    OWNED["words"] = "words"
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", scale, args=(x, "w")).sum()
        with pytest.raises(error, match=words):
            autograd.grad(context_id, y, reference("worker1", name))
        assert autograd.grad(context_id, y, x)[0].tolist() == [2.0, 3.0]  # all goes on


def test_a_tensor_that_wants_no_gradient_is_refused(cluster):
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id, pytest.raises(RuntimeError, match="not require grad"):
        autograd.grad(context_id, x.sum(), [torch.ones(2)])
