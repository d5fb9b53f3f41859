"""What a pass wants on one worker."""

from __future__ import annotations

import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.context import DistAutogradContext
from lockstitch.autograd.selection import Selection
from lockstitch.errors import DistAutogradError
from lockstitch.ids import GlobalId

PASS = GlobalId(0, 0, 1)


def leaf():
    return torch.ones(2, requires_grad=True)


def edges(*tensors):
    return [get_gradient_edge(tensor) for tensor in tensors]


def test_what_runs_find_is_added_up():
    chosen = edges(leaf(), leaf())
    selection = Selection(PASS, chosen)
    selection.add_gradients(chosen, [torch.ones(2), None])
    selection.add_gradients(chosen, [torch.full((2,), 2.0), None])
    found, nothing = selection.take()
    assert found.tolist() == [3.0, 3.0]
    assert nothing is None
    assert selection.take() == [None, None]


def test_a_history_is_kept_if_that_is_wanted():
    x = leaf()
    chosen = edges(x)
    for keeps in (True, False):
        selection = Selection(PASS, chosen)
        selection.add_gradients(chosen, [x * 2], keep_history=keeps)
        selection.add_gradients(chosen, [torch.ones(2)], keep_history=keeps)
        (found,) = selection.take()
        assert found.tolist() == [3.0, 3.0]
        assert found.requires_grad is keeps


def test_dense_and_sparse_gradients_of_one_tensor_are_added():
    table = torch.ones(3, 2, requires_grad=True)
    sparse = torch.sparse_coo_tensor([[1]], [[5.0, 5.0]], (3, 2))
    for gradients in ([sparse, torch.ones(3, 2)], [torch.ones(3, 2), sparse]):
        selection = Selection(PASS, edges(table))
        for gradient in gradients:
            selection.add_gradients(selection.edges, [gradient])
        assert selection.take()[0].tolist() == [[1.0, 1.0], [6.0, 6.0], [1.0, 1.0]]


def test_a_context_knows_the_latest_of_each_initiator_and_forgets_it_at_its_end():
    context, x = DistAutogradContext(1, None), leaf()
    other = GlobalId(1, 0, 9)
    first = context.select(PASS, edges(x))
    context.select(other, edges(x))
    assert context.selection_of(PASS) is first
    latest = context.select(GlobalId(0, 0, 2), edges(x, x))
    assert context.selection_of(latest.backward_pass) is latest
    assert context.selection_of(PASS).edges == ()
    context.release(DistAutogradError("over"))
    assert context.selection_of(other).edges == ()
