"""Calls, references and contexts inside functions that torch compiles, and around them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import autograd, optim, rpc
from lockstitch.nn import RemoteModule
from lockstitch.testing import LocalCluster

BACKENDS = ["eager", "aot_eager"]

# A compiler looks for it at each tensor, and hushes torch up in its own thread only.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def nothing_stays_compiled():
    yield
    torch.compiler.reset()


def double(x):
    return x * 2


class Scaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x):
        return self.weight * x


def call(x):
    return rpc.rpc_sync("worker1", double, args=(x + 1,)) + 1


def call_itself(x):
    return rpc.rpc_sync("worker0", double, args=(x + 1,)) + 1


def call_later(x):
    futures = [rpc.rpc_async("worker1", double, args=(x * n,)) for n in (1, 2)]
    return futures[0].wait() + torch.stack(rpc.wait_all(futures)).sum(0)


def refer(x):
    return rpc.remote("worker1", double, args=(x + 1,)).to_here() + rpc.RRef(x).local_value()


def call_method(x):
    part = rpc.remote("worker1", Scaling)
    again = part.rpc_async().forward(x).wait() + part.remote().forward(x).to_here()
    return part.rpc_sync().forward(x + 1) + again


def differentiate(x):
    y = x.sin()
    with autograd.context() as context:
        z = x.cos()
        loss = (rpc.rpc_sync("worker1", double, args=(z,)) * z).sum()
        autograd.backward(context, [loss])
        gradient = autograd.get_gradients(context)[x]
    return gradient + y


def differentiate_twice(x):
    with autograd.context() as context:
        z = rpc.rpc_sync("worker1", cube, args=(x.sin(),)).cos()
        (slope,) = autograd.grad(context, z.sum(), x, create_graph=True)
        (curvature,) = autograd.grad(context, (slope * slope).sum(), x)
    return curvature + 1


def cube(x):
    return x**3


def check(function, backend, x):
    compiled = torch.compile(function, backend=backend)
    for _ in range(2):
        expected, found = function(x), compiled(x)
        torch.testing.assert_close(found, expected)


def test_a_call_in_a_compiled_function():
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        check(call, "eager", torch.arange(3.0))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function",
    [call, call_itself, call_later, refer, call_method, differentiate, differentiate_twice],
)
def test_what_is_compiled_gives_what_it_gives_otherwise(function, backend):
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        check(function, backend, torch.arange(3.0, requires_grad=True))
        if function not in (differentiate, differentiate_twice):
            check(function, backend, torch.arange(3.0))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_gradient_passes_through_compiled_parts_on_both_sides_of_a_call(backend):
    linear, x = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    part = torch.compile(lambda x: linear(x).relu(), backend=backend)
    expected = torch.autograd.grad((linear(x).relu() * 2).sum(), [x, linear.weight])
    with LocalCluster(2) as cluster, cluster["worker0"].active(), autograd.context() as context:
        autograd.backward(context, [rpc.rpc_sync("worker1", double, args=(part(x),)).sum()])
        gradients = autograd.get_gradients(context)
    torch.testing.assert_close([gradients[x], gradients[linear.weight]], list(expected))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_step_of_a_distributed_optimizer(backend):
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        remote = RemoteModule("worker1/cpu", Scaling)
        optimizer = optim.DistributedOptimizer(torch.optim.SGD, remote.remote_parameters(), lr=0.5)

        def step(x):
            with autograd.context() as context:
                autograd.backward(context, [remote(x).sum()])
                optimizer.step(context)

        compiled = torch.compile(step, backend=backend)
        for _ in range(2):
            compiled(torch.ones(3))
        assert remote(torch.ones(3)).tolist() == [1.0] * 3


def test_what_must_not_be_cut_is_an_error_of_torch_that_names_the_call():
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        compiled = torch.compile(call, backend="eager", fullgraph=True)
        with pytest.raises(Exception, match="rpc_sync: it talks to other processes") as caught:
            compiled(torch.ones(3))
        assert type(caught.value).__name__ == "Unsupported"


def make_compiled(backend):
    return torch.compile(Scaling(), backend=backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_that_is_sent_compiled_is_compiled_by_the_callee(backend):
    x = torch.arange(3.0, requires_grad=True)
    with LocalCluster(2) as cluster, cluster["worker0"].active(), autograd.context() as context:
        y = rpc.rpc_sync("worker1", torch.compile(cube, backend=backend), args=(x,))
        y = y + rpc.remote("worker1", torch.compile(cube, backend=backend), args=(x,)).to_here()
        autograd.backward(context, [y.sum()])
        assert autograd.get_gradients(context)[x].tolist() == [0.0, 6.0, 24.0]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_remote_module_that_is_compiled(backend):
    x = torch.arange(3.0, requires_grad=True)
    with LocalCluster(2) as cluster, cluster["worker0"].active(), autograd.context() as context:
        remote = RemoteModule("worker1/cpu", make_compiled, args=(backend,))
        again = rpc.remote("worker1", make_compiled, args=(backend,))
        y = remote(x) + again.rpc_sync().__call__(x)
        autograd.backward(context, [y.sum()])
        assert autograd.get_gradients(context)[x].tolist() == [4.0] * 3


@pytest.mark.slow
def test_a_compiled_part_that_has_no_second_derivative_says_so_as_in_one_process():
    x = torch.ones(3, requires_grad=True)
    part = torch.compile(cube, backend="aot_eager")
    with LocalCluster(2) as cluster, cluster["worker0"].active(), autograd.context() as context:
        y = rpc.rpc_sync("worker1", double, args=(part(x),)).sum()
        (slope,) = autograd.grad(context, y, x, create_graph=True)
        with pytest.raises(Exception, match="does not currently support double backward"):
            autograd.grad(context, (slope * slope).sum(), x)
