"""Higher derivatives as programs take them: gradient penalties, Hessian-vector products, MAML."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import autograd, optim, rpc
from lockstitch.autograd.initiator import Initiator
from lockstitch.errors import DistAutogradError, PeerDiedError
from lockstitch.nn import RemoteModule
from lockstitch.testing import Faults, LocalCluster
from lockstitch.wire.messages import Gradient
from tests.cluster.autograd.comparison import gradients_of, run_in_threads

MODES = ("smart", "fast")
W = torch.linspace(0.5, 1.5, 3, dtype=torch.float64).requires_grad_()
V = torch.linspace(-0.5, 1.0, 3, dtype=torch.float64).requires_grad_()


def leaf(*shape):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(*shape or (3,), dtype=torch.float64, generator=generator).requires_grad_()


def weigh(x):
    return (x * W).tanh()


def weigh_elsewhere(x):
    """A nested call."""
    return rpc.rpc_sync("worker2", weigh_by_v, args=(x.exp() * W,)) * x


def weigh_by_v(x):
    return (x * V).sin()


def both_in_one_process(x):
    return weigh_by_v(x.exp() * W) * x


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_penalty(cluster, mode):
    x = leaf()
    loss = both_in_one_process(x).sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    expected = torch.autograd.grad(loss + (slope.norm() - 1) ** 2, [x, W, V])
    with cluster[0].active(), autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", weigh_elsewhere, args=(x,)).sum()
        (slope,) = autograd.grad(context_id, loss, x, create_graph=True, mode=mode)
        autograd.backward(context_id, [loss + (slope.norm() - 1) ** 2], mode=mode)
        found = gradients_of(cluster, context_id)
    assert_close([found[each] for each in (x, W, V)], list(expected))


def test_a_loop_asks_before_it_walks_once_its_roots_had_to_know_who_takes_part(
    cluster, monkeypatch
):
    firsts = []
    run = Initiator.run

    def note(self, *args):
        if not self.options.selects:
            firsts.append(self.asks_first)
        run(self, *args)

    monkeypatch.setattr(Initiator, "run", note)
    x = leaf()
    with cluster[0].active():
        for _ in range(2):
            with autograd.context() as context_id:
                y = x
                for _ in range(3):
                    y = rpc.rpc_sync("worker1", weigh, args=(y,)).tanh()
                (slope,) = autograd.grad(context_id, y.sum(), x, create_graph=True)
                autograd.backward(context_id, [y.sum() + (slope.norm() - 1) ** 2])
            with autograd.context() as context_id:
                autograd.backward(context_id, [rpc.rpc_sync("worker1", weigh, args=(x,)).sum()])
    assert firsts == [False, False, True, False]


def weight():
    return W


def times(reference, vector):
    return (reference.local_value() * vector).sum()


def test_a_product_of_the_hessian_of_remote_parameters_with_a_vector(cluster):
    x, vector = leaf(), torch.linspace(1.0, 2.0, 3, dtype=torch.float64)
    loss = both_in_one_process(x).sum()
    (slope,) = torch.autograd.grad(loss, W, create_graph=True)
    (expected,) = torch.autograd.grad((slope * vector).sum(), W)
    with cluster[0].active(), autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", weigh_elsewhere, args=(x,)).sum()
        w = rpc.remote("worker1", weight)
        (slope,) = autograd.grad(context_id, loss, w, create_graph=True)
        product = rpc.rpc_sync("worker1", times, args=(slope, vector))
        (found,) = autograd.grad(context_id, product, w)
        assert_close(found.to_here(), expected)


class Learner(nn.Module):
    """Weights that a task changes for itself."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))

    def weight_reference(self):
        return rpc.RRef(self.weight)

    def forward(self, x, steps=()):
        weight = self.weight
        for step in steps:
            weight = weight - 0.1 * step.local_value()
        return (x @ weight).tanh()


def meta_loss(forward, differentiate, x, y):
    """Two inner steps, then the loss of the outer one."""
    steps = []
    for _ in range(2):
        steps.append(differentiate(((forward(x, steps) - y) ** 2).mean()))
    return ((forward(x * 2, steps) - y) ** 2).mean()


class Here:
    """What stands for a reference in one process."""

    def __init__(self, value):
        self.value = value

    def local_value(self):
        return self.value


def refer_to_w():
    return rpc.RRef(W)


@pytest.mark.parametrize("mode", MODES)
def test_inputs_may_be_tensors_and_references_of_the_calling_worker(cluster, mode):
    x, y = leaf(), leaf()
    expected = torch.autograd.grad(((x * W).tanh() * y).sum(), [x, y, W])
    with cluster[0].active(), autograd.context() as context_id:
        elsewhere = rpc.rpc_sync("worker1", refer_to_w)
        made_here = rpc.remote("worker0", torch.Tensor.requires_grad_, args=(y.detach(),))
        weighed = rpc.rpc_sync("worker1", weigh, args=(x,))
        loss = (weighed * made_here.local_value()).sum()
        inputs = [made_here, x, made_here, elsewhere, rpc.RRef(x)]
        found = autograd.grad(context_id, loss, inputs, mode=mode)
        assert [isinstance(each, rpc.RRef) for each in found] == [True, False, True, True, True]
        values = [each.to_here() if isinstance(each, rpc.RRef) else each for each in found]
    of_x, of_y, of_w = expected
    assert_close(values, [of_y, of_x, of_y, of_w, of_x])


def test_maml(cluster):
    x, y = leaf(4, 3).detach(), leaf(4, 3).detach().cos()
    plain = Learner()

    def inner(loss):
        return Here(torch.autograd.grad(loss, plain.weight, create_graph=True)[0])

    loss = meta_loss(plain, inner, x, y)
    (expected,) = torch.autograd.grad(loss, plain.weight)
    with cluster[0].active():
        remote = RemoteModule("worker1/cpu", Learner)
        (weight,) = remote.remote_parameters()
        optimizer = optim.DistributedOptimizer(torch.optim.SGD, [weight], lr=0.5)
        before = weight.to_here().detach().clone()
        with autograd.context() as context_id:

            def inner_there(loss):
                return autograd.grad(context_id, loss, weight, create_graph=True)[0]

            there = meta_loss(remote, inner_there, x, y)
            autograd.backward(context_id, [there])
            optimizer.step(context_id)
        assert_close(there.detach(), loss.detach())
        assert_close(weight.to_here().detach(), before - 0.5 * expected)


def slope_in_the_context(context_id):
    return (autograd.get_gradients(context_id)[W] ** 2).sum()


@pytest.mark.parametrize("mode", MODES)
def test_gradients_in_the_context_have_a_history_on_every_worker(cluster, mode):
    x = leaf()
    loss = weigh(x).sum()
    slopes = torch.autograd.grad(loss, [x, W], create_graph=True)
    second = torch.autograd.grad((slopes[1] ** 2).sum(), [x, W])
    expected = [one.detach() + other for one, other in zip(slopes, second, strict=True)]
    with cluster[0].active(), autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", weigh, args=(x,)).sum()
        autograd.backward(context_id, [loss], create_graph=True, mode=mode)
        penalty = rpc.rpc_sync("worker1", slope_in_the_context, args=(context_id,))
        autograd.backward(context_id, [penalty])
        found = gradients_of(cluster, context_id)
    assert_close([found[each].detach() for each in (x, W)], expected)


def test_contexts_at_once_keep_their_graphs_apart(cluster):
    def penalize():
        x = leaf()
        with cluster[0].active(), autograd.context() as context_id:
            loss = rpc.rpc_sync("worker1", weigh_elsewhere, args=(x,)).sum()
            (slope,) = autograd.grad(context_id, loss, x, create_graph=True)
            (found,) = autograd.grad(context_id, (slope**3).sum(), x)
        assert_close(found, expected)

    x = leaf()
    (slope,) = torch.autograd.grad(both_in_one_process(x).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad((slope**3).sum(), x)
    run_in_threads([penalize] * 6)


def test_a_graph_that_was_not_kept_is_an_error_on_whichever_worker(cluster):
    x = leaf()
    with cluster[0].active(), autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", weigh, args=(x,)).sum()
        (slope,) = autograd.grad(context_id, loss, x, create_graph=True, retain_graph=False)
        with pytest.raises(DistAutogradError, match=r"Node 1.*backward through the graph a second"):
            autograd.backward(context_id, [(slope**2).sum()])


def test_a_first_order_pass_leaves_no_history(cluster):
    x = leaf()
    with cluster[0].active(), autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", weigh, args=(x,)).sum()
        (slope,) = autograd.grad(context_id, loss, x, retain_graph=True)
        assert not slope.requires_grad
        autograd.backward(context_id, [loss])
        assert not autograd.get_gradients(context_id)[x].requires_grad


class Once(torch.autograd.Function):
    """Has no second derivative."""

    @staticmethod
    def forward(_ctx, x):
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(_ctx, gradient):
        return gradient * 2


def once(x):
    return Once.apply(x * W) ** 2


def test_what_has_no_second_derivative_says_so(cluster):
    x = leaf()
    with cluster[0].active(), autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", once, args=(x,)).sum()
        (slope,) = autograd.grad(context_id, loss, x, create_graph=True)
        with pytest.raises(DistAutogradError, match="Node 1.*once_differentiable"):
            autograd.backward(context_id, [(slope**2).sum()])


def penalize_by_two_passes(x):
    with autograd.context() as context_id:
        loss = rpc.rpc_sync("worker1", weigh_elsewhere, args=(x,)).sum()
        autograd.backward(context_id, [loss], create_graph=True)
        slope = autograd.get_gradients(context_id)[x]
        autograd.backward(context_id, [(slope**2).sum()])


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("worker", ["worker1", "worker2"])
def test_a_worker_that_dies_in_a_second_order_pass_is_named(worker, nth):
    """At each message with a gradient: two of the first pass, and those of the second."""
    faults = Faults().kill(worker, after=Gradient, nth=nth)
    with LocalCluster(3, faults=faults) as cluster, cluster[0].active():
        x = leaf()
        with pytest.raises((PeerDiedError, DistAutogradError), match=worker):
            penalize_by_two_passes(x)
        other = "worker2" if worker == "worker1" else "worker1"
        assert rpc.rpc_sync(other, weigh_by_v, args=(x.detach(),)).shape == (3,)
