"""Pins the private behaviour of torch that distributed autograd stands on."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lockstitch.torch_internals.autograd import (
    OWN_NODES,
    give_own_node,
    has_node_hooks,
    node_hooks,
    node_prehooks,
    run_engine,
)


def leaf_edge(tensor):
    return get_gradient_edge(tensor)


def test_the_engine_captures_gradients_and_leaves_grad_alone():
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    captured = run_engine([get_gradient_edge(y)], [torch.ones(3)], [leaf_edge(x)], False)
    assert captured[0].tolist() == [2.0, 2.0, 2.0]
    assert x.grad is None


def test_what_no_gradient_reaches_is_captured_as_none():
    x, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    y = x * 2
    captured = run_engine(
        [get_gradient_edge(y)], [torch.ones(3)], [leaf_edge(other), leaf_edge(x)], False
    )
    assert captured[0] is None


def test_one_edge_may_be_a_root_twice_and_be_captured_itself():
    x = torch.ones(2, requires_grad=True)
    edge = leaf_edge(x)
    (captured,) = run_engine([edge, edge], [torch.ones(2), torch.ones(2)], [edge], False)
    assert captured.tolist() == [2.0, 2.0]


def test_hooks_of_a_leaf_run_on_what_is_captured():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: gradient * 10)
    (captured,) = run_engine([get_gradient_edge(x * 2)], [torch.ones(2)], [leaf_edge(x)], False)
    assert captured.tolist() == [20.0, 20.0]


def test_hooks_of_a_node_are_found_and_stay():
    x = torch.ones(2, requires_grad=True)
    node = (x * 2).grad_fn.next_functions[0][0]
    assert node_hooks(node) == []

    def hook(_grad_inputs, _grad_outputs):
        return None

    handle = node.register_hook(hook)
    assert node_hooks(node) == [hook]
    assert node_hooks(node) == [hook]
    handle.remove()
    assert node_hooks(node) == []


def test_ready_nodes_run_by_sequence_number_greatest_first():
    x = torch.ones(1, requires_grad=True)
    order = []
    nodes = [torch.ops.aten.alias(x).grad_fn for _ in range(4)]
    for number, node in zip([3, 9, 1, 5], nodes, strict=True):
        node._set_sequence_nr(number)
        assert node._sequence_nr() == number
        node.register_prehook(lambda _gradients, number=number: order.append(number))
    edges = [GradientEdge(node, 0) for node in nodes]
    run_engine(edges, [torch.ones(1)] * 4, [leaf_edge(x)], False)
    assert order == [9, 5, 3, 1]


def test_a_prehook_may_replace_the_gradient_or_take_it_away():
    x = torch.ones(2, requires_grad=True)
    node = torch.ops.aten.alias(x).grad_fn
    given = [torch.full((2,), 7.0)]
    handle = node.register_prehook(lambda _gradients: (given[0],))
    edge = GradientEdge(node, 0)
    zeros = torch.zeros(()).expand(2)
    assert run_engine([edge], [zeros], [leaf_edge(x)], True)[0].tolist() == [7.0, 7.0]
    given[0] = None
    assert run_engine([edge], [zeros], [leaf_edge(x)], True) == [None]
    handle.remove()


def test_an_exception_in_a_hook_comes_out_as_itself():
    x = torch.ones(2, requires_grad=True)
    y = x * 2

    def fail(_gradient):
        raise KeyError("own")

    y.register_hook(fail)
    with pytest.raises(KeyError, match="own"):
        run_engine([get_gradient_edge(y)], [torch.ones(2)], [leaf_edge(x)], False)


def test_prehooks_of_a_node_are_found_and_stay():
    x = torch.ones(2, requires_grad=True)
    node = (x * 2).grad_fn.next_functions[0][0]
    assert not has_node_hooks(node)

    def hook(_gradients):
        return None

    handle = node.register_prehook(hook)
    assert has_node_hooks(node)
    assert node_prehooks(node) == [hook]
    assert node_hooks(node) == []
    handle.remove()
    assert not has_node_hooks(node)
    node.register_hook(lambda _into, _out: None)
    assert has_node_hooks(node)


def test_hooks_of_a_node_that_was_made_anew_are_other_ones():
    x = torch.ones(2, requires_grad=True)
    node = (x * 2).grad_fn.next_functions[0][0]
    node.register_prehook(lambda _gradients: None)
    assert has_node_hooks(node)
    del node
    assert not has_node_hooks((x * 2).grad_fn.next_functions[0][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_tensor_gets_a_node_of_its_own(dtype):
    leaf = torch.ones((), dtype=dtype, requires_grad=True)
    tensor = leaf.sin()
    before, address = tensor.grad_fn, tensor.data_ptr()
    give_own_node(tensor)
    assert type(tensor.grad_fn) in OWN_NODES
    assert tensor.grad_fn.next_functions == ((before, 0),)
    assert tensor.data_ptr() == address
    assert not tensor._is_view()
    tensor.abs().backward()
    assert leaf.grad is not None


def test_hooks_are_found_also_where_the_note_of_them_has_been_lost():
    """As a collection of garbage leaves it that took the node's object for dead too early."""
    leaf = torch.ones(2, requires_grad=True)
    node = get_gradient_edge(leaf).node
    assert not has_node_hooks(node)
    (name,) = node.metadata
    node.metadata[name] = (lambda: None, lambda: None)
    node.register_prehook(lambda _gradients: None)
    assert has_node_hooks(node)
    assert len(node_prehooks(node)) == 1
