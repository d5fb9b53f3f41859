"""The two halves of a stitch, and the interceptor."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import GradientEdge

from lockstitch.autograd import stitch
from lockstitch.autograd.stitch import (
    ANCHOR,
    RECEIVE_NODE,
    RECV_NAME,
    received_message,
    stitch_receive,
    stitch_send,
)
from lockstitch.ids import GlobalId
from lockstitch.torch_internals.autograd import run_engine
from lockstitch.wire.messages import Stitch
from tests.unit.autograd.post_office import context_on, transfer

MESSAGE = GlobalId(1, 0, 5)


class GradientSink:
    def __init__(self):
        self.emitted = []

    def emit(self, receive, gradients):
        self.emitted.append((receive.message, gradients))


# ---------------------------------------------------------------- nodes


def test_a_send_is_a_node_of_its_own_above_the_tensor():
    x = torch.ones(3, requires_grad=True)
    h = x * 2
    (alias,) = stitch_send([h])
    assert alias.next_functions == ((h.grad_fn, 0),)


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
@pytest.mark.parametrize("alias_of", [stitch._odd_alias, torch.clone], ids=["here", "copied"])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_of_other_layouts_are_sent_too(make, alias_of, monkeypatch):
    monkeypatch.setattr(stitch, "_odd_alias", alias_of)
    x = make(torch.eye(3)).requires_grad_()
    (alias,) = stitch_send([x])
    leaf = GradientEdge(*alias.next_functions[0])
    assert leaf.node.variable is x
    gradient = make(torch.full((3, 3), 2.0))
    (captured,) = run_engine([GradientEdge(alias, 0)], [gradient], [leaf], False)
    assert torch.equal(captured.to_dense(), gradient.to_dense())


def test_a_node_that_lives_by_its_tensor_is_recognized():
    class Dead:
        @property
        def next_functions(self):
            raise RuntimeError("invalid for this instance")

    assert stitch._outlives_its_tensors(torch.clone)
    assert not stitch._outlives_its_tensors(lambda _tensor: SimpleNamespace(grad_fn=Dead()))


def test_a_send_stays_on_the_tensor_as_it_was():
    x = torch.ones(3, requires_grad=True)
    h = x * 2
    (alias,) = stitch_send([h])
    before = h.grad_fn
    h.mul_(3)
    assert alias.next_functions[0][0] is before
    assert h.grad_fn is not before


def test_received_tensors_hand_their_gradients_to_the_run():
    one, other = stitch_receive(MESSAGE, [torch.ones(2), torch.ones(3)])
    node = one.grad_fn
    assert type(node) is RECEIVE_NODE
    assert received_message(node) == MESSAGE
    assert node.name() == RECV_NAME
    node.receive.sink = sink = GradientSink()
    edge = torch.autograd.graph.get_gradient_edge((other * 2).sum())
    run_engine([edge], [torch.ones(())], [ANCHOR], False)
    ((message, gradients),) = sink.emitted
    assert message == MESSAGE
    assert gradients[0] is None
    assert gradients[1].tolist() == [2.0, 2.0, 2.0]


def test_received_views_and_leaves_become_plain_outputs():
    base = torch.ones(4)
    wanted = torch.ones(2, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(2))
    received = stitch_receive(MESSAGE, [base[:2], base[2:], wanted, parameter])
    for tensor in received:
        assert type(tensor.grad_fn) is RECEIVE_NODE
        assert not tensor._is_view()
        tensor.mul_(2)
    assert wanted.is_leaf


def test_a_local_backward_over_a_receive_says_what_to_do():
    (tensor,) = stitch_receive(MESSAGE, [torch.ones(2)])
    with pytest.raises(RuntimeError, match="reached a tensor that was received over RPC"):
        tensor.sum().backward()


def test_other_nodes_are_no_receives():
    node = torch.ones(2, requires_grad=True).sin().grad_fn
    assert type(node) is not RECEIVE_NODE
    assert received_message(node) is None


# ---------------------------------------------------------------- the interceptor


def stitcher(participant):
    return participant.agent.interceptor


def test_outside_a_context_nothing_happens(office):
    assert not stitcher(office[0]).is_active()
    assert stitcher(office[0]).outgoing(office[1].id, [torch.ones(1, requires_grad=True)]) is None


def test_a_context_belongs_to_one_worker(office):
    with context_on(office[0]):
        assert stitcher(office[0]).is_active()
        wanted = torch.ones(1, requires_grad=True)
        assert stitcher(office[1]).outgoing(office[0].id, [wanted]) is None


def test_the_stitch_names_the_tensors_that_want_gradients(office):
    wanted = torch.ones(1, requires_grad=True)
    items = [torch.ones(1), wanted, memoryview(b"bytes"), None, wanted * 2, torch.tensor([1])]
    with context_on(office[0]) as context:
        stitch = stitcher(office[0]).outgoing(office[1].id, items)
        assert stitch == Stitch(context.id, GlobalId(0, 0, 0), (1, 4), ())
        (send,) = context.sends
        assert send.destination == office[1].id
        assert len(send.aliases) == 2


def test_messages_without_such_tensors_carry_the_context_alone(office):
    with context_on(office[0]) as context:
        stitch = stitcher(office[0]).outgoing(office[1].id, [torch.ones(1)])
        assert stitch == Stitch(context.id, None, (), ())
        with torch.no_grad():
            wanted = torch.ones(1, requires_grad=True)
            assert stitcher(office[0]).outgoing(office[1].id, [wanted]).message is None
        assert context.sends == []
        assert context.receivers == {office[1].id}


def test_workers_travel_with_the_stitch(office):
    x = torch.ones(1, requires_grad=True)
    with context_on(office[0]):
        transfer(office[0], office[1], [x])
        _, stitch = transfer(office[0], office[2], [x])
        assert stitch.workers == (office[1].id,)
        with stitcher(office[2]).scope(stitch):
            there = office[2].autograd.current_context()
            assert there.workers == {office[0].id, office[1].id}
        assert stitcher(office[2]).outgoing(office[0].id, [x]) is None


def test_received_tensors_begin_a_graph_in_a_context_made_on_demand(office):
    with context_on(office[0]) as context:
        (received,), stitch = transfer(office[0], office[1], [torch.ones(1, requires_grad=True)])
        assert type(received.grad_fn) is RECEIVE_NODE
        there = office[1].autograd.find_context(context.id)
        assert there.receives == {stitch.message: received.grad_fn}


def test_what_was_asked_for_without_grad_mode_is_not_recorded(office):
    with context_on(office[0]) as context:
        stitch = stitcher(office[0]).outgoing(office[1].id, [torch.ones(1, requires_grad=True)])
        items = [torch.ones(1)]
        stitcher(office[1]).incoming(office[0].id, stitch, items, records=False)
        assert not items[0].requires_grad
        assert office[1].autograd.find_context(context.id).receives == {}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_modes_of_the_thread_that_reads_are_no_matter(office, mode):
    with context_on(office[0]) as context:
        stitch = stitcher(office[0]).outgoing(office[1].id, [torch.ones(1, requires_grad=True)])
        items = [torch.ones(1)]
        with mode():
            stitcher(office[1]).incoming(office[0].id, stitch, items)
        assert items[0].requires_grad
        (receive,) = office[1].autograd.find_context(context.id).receives.values()
        assert items[0].grad_fn is receive


def test_a_message_of_a_released_context_does_not_bring_it_back(office):
    with context_on(office[0]) as context:
        _, stitch = transfer(office[0], office[1], [torch.ones(1, requires_grad=True)])
    office.wait_until_quiet()
    items = [torch.ones(1)]
    stitcher(office[1]).incoming(office[0].id, stitch, items)
    assert not items[0].requires_grad
    with stitcher(office[1]).scope(stitch):
        assert not stitcher(office[1]).is_active()
    assert office[1].autograd.contexts == []
    assert context.is_released


def test_a_thread_whose_context_was_released_sends_without_one(office):
    with context_on(office[0]) as context:
        office[0].autograd._release(context, None)
        assert stitcher(office[0]).outgoing(office[1].id, [torch.ones(1)]) is None
