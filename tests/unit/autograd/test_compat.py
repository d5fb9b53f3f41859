"""Torch's underscore names."""

from __future__ import annotations

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.testing.cluster import LocalCluster


@pytest.fixture
def cluster():
    with LocalCluster(2) as running, running[0].active():
        yield running


def test_a_context_by_id_and_the_current_one(cluster):
    with autograd.context() as context_id:
        assert autograd._current_context()._context_id() == context_id
        assert autograd._retrieve_context(context_id)._context_id() == context_id
        autograd._is_valid_context(context_id)
    with pytest.raises(RuntimeError, match="Could not find autograd context with id"):
        autograd._is_valid_context(context_id)
    with pytest.raises(RuntimeError):
        autograd._current_context()


def test_a_context_opened_and_released_by_hand(cluster):
    context = autograd._new_context()
    assert isinstance(context, autograd.DistAutogradContext)
    autograd._release_context(context._context_id())
    with pytest.raises(RuntimeError):
        autograd._current_context()


def test_sends_and_receives_look_like_torchs_nodes(cluster):
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with autograd.context():
        total = rpc.rpc_sync("worker1", torch.add, args=(x, y))
        context = autograd._current_context()
        (send,) = context._send_functions().values()
        (receive,) = context._recv_functions().values()
        assert send.name() == "torch::distributed::autograd::SendRpcBackward"
        assert [node.variable for node, _ in send.next_functions] == [x, y]
        assert receive.name() == "torch::distributed::autograd::RecvRpcBackward"
        assert receive == total.grad_fn
        assert context._known_worker_ids() == {1}
        assert context._get_gradients() == {}


def run_again(one, other):
    return rpc.rpc_sync("worker0", torch.add, args=(one, other))


def test_a_graph_above_a_receive_looks_like_torchs(cluster):
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        rpc.rpc_sync("worker1", run_again, args=(x, y))
        with cluster[1].active():
            sends = list(autograd._retrieve_context(context_id)._send_functions().values())
            receives = autograd._retrieve_context(context_id)._recv_functions().values()
        (one, _), (other, _) = sends[0].next_functions
        assert one == other
        assert len({one, other}) == 1
        assert one.name() == "torch::distributed::autograd::RecvRpcBackward"
        assert any(one == receive for receive in receives)
        own = autograd._current_context()._send_functions().values()
        added = [send.next_functions for send in own if len(send.next_functions) == 1]
        assert added[0][0][0].name() == "AddBackward0"
        (left, at), (right, and_at) = added[0][0][0].next_functions
        assert left == right
        assert (at, and_at) == (0, 1)


def test_the_greatest_id_and_the_counts(cluster):
    autograd._init(0)
    assert autograd._get_max_id() == (1 << 48) - 1
    with autograd.context():
        assert autograd._get_debug_info() == {
            "num_current_backward_passes": "0",
            "num_autograd_contexts": "1",
        }


def test_it_is_available():
    assert autograd.is_available()
