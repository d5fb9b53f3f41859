"""Records, workers and gradients of a context on one worker."""

from __future__ import annotations

import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.context import (
    DistAutogradContext,
    PassGate,
    current_context,
    set_current_context,
)
from lockstitch.errors import DistAutogradError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.torch_internals.autograd import run_engine

ME, A, B = WorkerId(0, 0), WorkerId(1, 0), WorkerId(2, 0)
RELEASED = DistAutogradError("released")


def context():
    return DistAutogradContext(7, home=None)


def add(target, leaves, gradients):
    """What a run that captured these gradients does."""
    target.add_gradients([get_gradient_edge(leaf) for leaf in leaves], gradients)


def leaf(*shape):
    return torch.ones(*(shape or (3,)), requires_grad=True)


# ---------------------------------------------------------------- records


def test_sends_keep_their_order_and_become_entries():
    c, x = context(), leaf()
    node = torch.ops.aten.alias(x).grad_fn
    for number in (4, 2):
        c.add_send(GlobalId(0, 0, number), A, (node,))
    assert [send.message.counter for send in c.sends] == [4, 2]
    entry = c.sends[1].entry()
    assert entry.order == 2
    assert entry.edges[0].node.variable is x


def test_a_released_context_records_nothing_and_forgets_everything():
    c, x = context(), leaf()
    node = torch.ops.aten.alias(x).grad_fn
    c.add_send(GlobalId(0, 0, 1), A, (node,))
    add(c, [x], [torch.ones(3)])
    c.release(RELEASED)
    c.add_send(GlobalId(0, 0, 2), A, (node,))
    c.add_receive(GlobalId(1, 0, 2), node)
    add(c, [x], [torch.ones(3)])
    assert c.sends == []
    assert c.receives == {}
    assert c.gradients == {}


def test_the_repr_tells_what_it_holds():
    c = context()
    c.involve(A, ME)
    assert repr(c) == (
        "<DistAutogradContext 7 · 1 other workers · 0 sends · 0 receives · 0 gradients>"
    )
    c.release(RELEASED)
    assert "released" in repr(c)


# ---------------------------------------------------------------- workers


def test_each_worker_is_told_of_the_others_once():
    c = context()
    assert c.involve(A, ME) == ()
    assert c.involve(B, ME) == (A,)
    assert c.involve(B, ME) == ()
    assert c.involve(A, ME) == (B,)
    assert c.workers == {A, B}
    assert c.receivers == {A, B}


def test_what_a_worker_told_is_not_told_back():
    c = context()
    c.learn(A, (B,), ME)
    assert c.workers == {A, B}
    assert c.receivers == frozenset()
    assert c.involve(A, ME) == ()
    assert c.involve(B, ME) == (A,)


def test_being_told_of_oneself_is_no_news():
    c = context()
    c.learn(A, (ME,), ME)
    assert c.workers == {A}
    assert c.involve(A, ME) == ()


def test_messages_to_oneself_involve_nobody_else():
    c = context()
    assert c.involve(ME, ME) == ()
    c.learn(ME, (), ME)
    assert c.workers == frozenset()


# ---------------------------------------------------------------- gradients


def test_gradients_add_up():
    c, x = context(), leaf()
    add(c, [x], [torch.ones(3)])
    add(c, [x], [torch.ones(3)])
    add(c, [x], [None])
    assert c.gradients[x].tolist() == [2.0, 2.0, 2.0]


def test_gradients_may_be_replaced_until_the_context_is_released():
    c, x, y = context(), leaf(), leaf()
    add(c, [x, y], [torch.ones(3), torch.ones(3)])
    c.set_gradients({x: torch.full((3,), 5.0)})
    assert [c.gradients[each].tolist() for each in (x, y)] == [[5, 5, 5], [1, 1, 1]]
    c.release(RELEASED)
    c.set_gradients({x: torch.ones(3)})
    assert not c.gradients


def test_many_gradients_add_up_whatever_else_there_is():
    c = context()
    leaves = [leaf(), leaf(2), torch.ones(4, dtype=torch.float64, requires_grad=True)]
    leaves_and_later = [*leaves, leaf()]
    edges = [get_gradient_edge(each) for each in leaves_and_later]
    indices, values = torch.tensor([[1]]), torch.ones(1)
    for number in range(4):
        if number == 2:
            leaves = leaves_and_later
        gradients = [torch.full_like(each, number + 1, requires_grad=False) for each in leaves]
        if number == 1:
            gradients[0] = torch.sparse_coo_tensor(indices, values, (3,), check_invariants=True)
        if number == 3:
            gradients[1] = None
            leaves[2].requires_grad_(False)
        c.add_gradients(edges[: len(leaves)], gradients)
    found = [c.gradients[each].tolist() for each in leaves]
    assert found == [[8, 9, 8], [6, 6], [6] * 4, [7] * 3]


def test_a_gradient_with_one_owner_is_stolen():
    c, x = context(), leaf()
    gradients = [torch.ones(3)]
    address = gradients[0].data_ptr()
    add(c, [x], gradients)
    assert c.gradients[x].data_ptr() == address


def test_a_gradient_that_somebody_keeps_is_copied():
    c, x = context(), leaf()
    kept = torch.ones(3)
    add(c, [x], [kept])
    assert c.gradients[x].data_ptr() != kept.data_ptr()


def test_one_gradient_for_two_leaves_is_copied_for_each():
    c, x, y = context(), leaf(), leaf()
    shared = [torch.ones(3)] * 2
    address = shared[0].data_ptr()
    add(c, [x, y], shared)
    addresses = {c.gradients[x].data_ptr(), c.gradients[y].data_ptr(), address}
    assert len(addresses) == 3


def test_an_expanded_gradient_is_copied():
    c, x = context(), leaf()
    add(c, [x], [torch.ones(1).expand(3)])
    c.gradients[x][0] = 5
    assert c.gradients[x].tolist() == [5.0, 1.0, 1.0]


def test_a_gradient_laid_out_otherwise_takes_the_layout_of_its_leaf():
    c, x = context(), leaf(2, 3)
    add(c, [x], [torch.arange(6.0).view(3, 2).t()])
    assert c.gradients[x].stride() == x.stride()
    assert c.gradients[x].tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]


def test_a_transposed_gradient_of_a_transposed_leaf_is_stolen():
    c = context()
    x = torch.ones(3, 2).t().detach().requires_grad_()
    gradients = [torch.ones(3, 2).t()]
    # The view's base is gone, so the view alone owns the memory.
    address = gradients[0].data_ptr()
    add(c, [x], gradients)
    assert c.gradients[x].data_ptr() == address


def test_an_expanded_leaf_gets_a_gradient_of_its_own_memory():
    c = context()
    x = torch.ones(1).expand(3).detach().requires_grad_()
    add(c, [x], [torch.ones(1).expand(3)])
    c.gradients[x][0] = 5
    assert c.gradients[x].tolist() == [5.0, 1.0, 1.0]


def test_sparse_and_dense_gradients_of_one_leaf_add_up():
    def sparse():
        return torch.eye(2).to_sparse()

    for first, second in ((sparse(), sparse()), (sparse(), torch.ones(2, 2))):
        for order in ((first, second), (second, first)):
            c, x = context(), leaf(2, 2)
            for gradient in order:
                add(c, [x], [gradient.clone()])
            expected = first.to_dense() + second.to_dense()
            assert torch.equal(c.gradients[x].to_dense(), expected)


def test_a_leaf_that_wants_no_gradient_any_more_gets_none():
    c, x = context(), leaf()
    edge = get_gradient_edge(x * 2)
    captured = run_engine([edge], [torch.ones(3)], [get_gradient_edge(x)], False)
    accumulate = get_gradient_edge(x)
    x.requires_grad_(False)
    c.add_gradients([accumulate], captured)
    assert c.gradients == {}


def test_the_dictionary_of_gradients_is_the_callers_own():
    c, x = context(), leaf()
    add(c, [x], [torch.ones(3)])
    c.gradients.clear()
    assert x in c.gradients


# ---------------------------------------------------------------- current context, gate


def test_the_current_context_is_that_of_its_home_only():
    home = object()
    c = DistAutogradContext(1, home)
    assert set_current_context(c) is None
    assert current_context(home) is c
    assert current_context(object()) is None
    assert set_current_context(None) is c
    assert current_context(home) is None


def test_runs_of_one_pass_enter_together_those_of_the_next_later():
    gate, order = PassGate(), []
    assert gate.enter("one", lambda: None)
    assert gate.enter("one", lambda: None)
    assert not gate.enter("two", lambda: order.append("two"))
    assert gate.leave() == []
    assert gate.is_occupied
    for task in gate.leave():
        task()
    assert order == ["two"]
    assert not gate.is_occupied
    assert gate.enter("two", lambda: None)


# ---------------------------------------------------------------- passes


class APass:
    def __init__(self) -> None:
        self.error: BaseException | None = None

    def fail(self, error: BaseException, *, may_be_over: bool) -> None:
        assert may_be_over
        self.error = error


def test_a_release_fails_the_passes_so_far_and_lets_none_begin():
    c, early, late = context(), APass(), APass()
    assert c.add_pass(A, early)

    c.release(RELEASED)

    assert early.error is RELEASED
    assert not c.add_pass(A, late)
    assert c.passes == {}
