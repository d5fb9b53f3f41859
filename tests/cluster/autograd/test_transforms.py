"""What else of torch differentiates, or changes how: transforms of functions, forward-mode
differentiation, checkpoints and hooks of saved tensors, around calls and inside callees."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from lockstitch import autograd, rpc
from lockstitch.errors import DistAutogradError
from tests.cluster.autograd.comparison import OWNED, Way, assert_same, call, make_leaves

# Forward-mode differentiation compiles a function of torch's by its older compiler.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is")

TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "vmap": torch.func.vmap,
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones(3),)),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x),
}


def weighted(x):
    return (OWNED["w"] * x).sin()


def owned(name):
    return OWNED[name]


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("in_context", [False, True])
def test_a_transform_over_a_call_says_that_it_cannot_and_calls_go_on(cluster, name, in_context):
    OWNED.update(make_leaves())
    x = torch.ones(3, dtype=torch.float64)

    def f(x):
        return rpc.rpc_sync("worker1", weighted, args=(x,))

    with cluster[0].active(), autograd.context() as context_id:
        if in_context:
            with pytest.raises(RuntimeError, match=r"transform of torch\.func .* cannot cross"):
                TRANSFORMS[name](f)(x)
        else:
            with pytest.raises(RuntimeError, match=r"transform of torch\.func .* cannot cross"):
                TRANSFORMS[name](lambda x: rpc.remote("worker1", weighted, args=(x,)).to_here())(x)
        y = f(x.requires_grad_()).sum()
        assert autograd.grad(context_id, y, x)[0].shape == (3,)


def test_a_functional_call_over_a_call(cluster):
    linear = torch.nn.Linear(3, 3).double()

    def program(leaves):
        values = {"weight": linear.weight * leaves["x"].sum(), "bias": linear.bias}
        return [
            torch.func.functional_call(linear, values, (call("worker1", weighted, leaves["y"]),))
        ]

    assert_same(cluster, program)


@pytest.mark.parametrize("way", ["sync", "remote", "reference"])
def test_a_tangent_is_not_lost_without_a_word(cluster, way):
    OWNED.update(make_leaves())
    with cluster[0].active(), forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        sends = {
            "sync": lambda: rpc.rpc_sync("worker1", weighted, args=([dual],)),
            "remote": lambda: rpc.remote("worker1", weighted, args=(dual,)),
            "reference": lambda: rpc.rpc_sync("worker1", fetched, args=(rpc.RRef(dual),)),
        }
        with pytest.raises(RuntimeError, match="tangent .* cannot cross"):
            sends[way]()
        assert rpc.rpc_sync("worker1", owned, args=("x",)).shape == (3,)


def fetched(reference):
    return reference.to_here()


# ---------------------------------------------------------------- checkpoints and saved tensors


def checkpointed(x):
    return checkpoint(weighted, x.exp(), use_reentrant=False)


def nested(x):
    return call("worker2", weighted, x.exp())


def checkpointed_call(x):
    return checkpoint(nested, x, use_reentrant=False)


CHECKPOINTS = {
    "around a call": lambda x: checkpoint(
        lambda y: call("worker1", weighted, y), x.exp(), use_reentrant=False
    ),
    "inside a callee": lambda x: call("worker1", checkpointed, x),
    "around a call of a callee": lambda x: call("worker1", checkpointed_call, x),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_changes_no_gradient(cluster, name):
    assert_same(cluster, lambda leaves: [CHECKPOINTS[name](leaves["x"] * leaves["y"]).cos()])


def test_a_call_that_is_run_again_may_use_a_leaf_with_a_hook(cluster):
    def forward(leaves):
        leaves["w"].register_hook(torch.tanh)  # which it sees all at once
        x = call("worker2", torch.sin, leaves["x"])
        return [
            checkpoint(lambda y: call("worker1", weighted, y.exp()).cos(), x, use_reentrant=False)
        ]

    assert_same(cluster, forward, ("smart",))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_changes_no_second_derivative(cluster, name):
    def second(remote):
        leaves = make_leaves()
        OWNED.update(leaves)
        x = leaves["x"]
        if not remote:
            (slope,) = torch.autograd.grad(weighted(x.exp()).sum(), x, create_graph=True)
            return torch.autograd.grad((slope**2).sum(), x)[0]
        with cluster[0].active(), autograd.context() as context_id:
            y = CHECKPOINTS[name](x).sum()
            (slope,) = autograd.grad(context_id, y, x, create_graph=True)
            return autograd.grad(context_id, (slope**2).sum(), x)[0]

    Way.is_remote = True
    torch.testing.assert_close(second(True), second(False), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_reentrant_checkpoint_says_what_to_do(cluster, worker):
    OWNED.update(make_leaves())

    def program(x):
        if worker:
            return rpc.rpc_sync("worker1", reentrant, args=(x,))
        return checkpoint(
            lambda y: rpc.rpc_sync("worker1", weighted, args=(y,)), x, use_reentrant=True
        )

    x = OWNED["x"].exp()
    with cluster[0].active(), autograd.context() as context_id:
        y = program(x).sum()
        with pytest.raises(DistAutogradError, match=f"Node {worker}: .*set use_reentrant=False"):
            autograd.backward(context_id, [y])


def reentrant(x):
    return checkpoint(weighted, x, use_reentrant=True)


@pytest.mark.parametrize(
    "hooks",
    [
        lambda: torch.autograd.graph.save_on_cpu(),
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t),
    ],
)
def test_hooks_of_saved_tensors_around_a_call(cluster, hooks):
    def program(leaves):
        with hooks():
            return [call("worker1", weighted, leaves["x"].exp() * leaves["y"]).exp()]

    assert_same(cluster, program)


# ---------------------------------------------------------------- calls outside the context


@pytest.mark.parametrize("way", ["sync", "async", "remote"])
def test_a_pass_that_ends_in_the_result_of_a_call_outside_of_any_context_warns_once(cluster, way):
    OWNED.update(make_leaves())
    x, plain = OWNED["x"], torch.ones(3, dtype=torch.float64)
    with cluster[0].active():
        if way == "sync":
            y = rpc.rpc_sync("worker1", weighted, args=(plain,))
        elif way == "async":
            y = rpc.rpc_async("worker1", weighted, args=(plain,)).wait()
        else:
            y = rpc.remote("worker1", weighted, args=(plain,)).to_here()
        name = r"to_here\(\)" if way == "remote" else "a call of .*:weighted"
        with autograd.context() as context_id:
            with pytest.warns(UserWarning, match=f"'worker1'.*{name}, outside of any autograd"):
                autograd.backward(context_id, [(x * y).sum()])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                autograd.backward(context_id, [(x * y).sum()])
                autograd.grad(context_id, (x * y).sum(), x)
