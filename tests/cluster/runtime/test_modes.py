"""Calls and references by programs that are in a mode of torch, and train afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import autograd, rpc
from lockstitch.testing import LocalCluster
from tests.modes import EACH_MODE, Hollow, in_mode


def double(x):
    return x * 2


def describe(x):
    return type(x).__name__, x.is_inference(), x.device.type, tuple(x.shape), x.sum().item()


class Scaling:
    """A part that is made in a mode, and trained outside of it."""

    def __init__(self):
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def __call__(self, x):
        return self.weight * x


def call(to, x):
    return rpc.rpc_sync(to, double, args=(x,))


def call_and_wait(to, x):
    return rpc.wait_all([rpc.rpc_async(to, double, args=(x,))])[0]


def fetch(to, x):
    return rpc.remote(to, double, args=(x,)).to_here()


ordinary = torch.arange(6.0).view(2, 3)
TENSORS = {
    "small": ordinary,
    "with gaps": torch.arange(30.0).view(5, 6).t()[::2, :2],
    "large": torch.ones(300, 200),
    "large with gaps": torch.ones(300, 400)[:, ::2],
    "wants a gradient": torch.ones(3, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("mode", EACH_MODE)
def test_tensors_cross_in_any_mode_as_in_none(mode):
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        for to in ("worker1", "worker0"):
            for name, x in TENSORS.items():
                expected = (x.detach() * 2).to_dense()
                for way in (call, call_and_wait, fetch):
                    with in_mode(mode):
                        result = way(to, x)
                    assert type(result) is torch.Tensor, name
                    assert not result.is_inference()
                    assert torch.equal(result.detach().to_dense(), expected), (name, way)
                with in_mode(mode):
                    seen = rpc.rpc_sync(to, describe, args=(x,))
                assert seen == ("Tensor", False, "cpu", (*x.shape,), x.detach().sum().item())


@pytest.mark.parametrize("mode", EACH_MODE)
def test_what_was_made_on_another_worker_in_a_mode_is_trained_outside_of_it(mode):
    x = torch.ones(3, requires_grad=True)
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        for to in ("worker1", "worker0"):
            with in_mode(mode):
                part = rpc.remote(to, Scaling)
                rpc.rpc_sync(to, double, args=(x,))
            for _ in range(2):
                with autograd.context() as context:
                    autograd.backward(context, [part.rpc_sync().__call__(x).sum()])
                    gradients = autograd.get_gradients(context)
                    assert gradients[x].tolist() == [2.0] * 3


def test_a_pass_in_inference_mode_leaves_gradients_that_later_ones_add_to():
    x = torch.ones(3, requires_grad=True)
    with LocalCluster(2) as cluster, cluster["worker0"].active(), autograd.context() as context:
        first, second = call("worker1", x).sum(), call("worker1", x * 1).sum()
        with torch.inference_mode():
            autograd.backward(context, [first])
        autograd.backward(context, [second])
        gradient = autograd.get_gradients(context)[x]
        assert gradient.tolist() == [4.0] * 3
        assert not gradient.is_inference()


def test_a_tensor_without_data_does_not_leave_and_calls_go_on():
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        with pytest.raises(RuntimeError, match=r"transform of torch\.func .*cannot cross"):
            torch.vmap(lambda x: call("worker1", x))(torch.ones(3))
        with pytest.raises(Exception, match="no data|without data|Hollow"):
            call("worker1", Hollow(torch.ones(3)))
        assert call("worker1", torch.ones(3)).tolist() == [2.0] * 3
