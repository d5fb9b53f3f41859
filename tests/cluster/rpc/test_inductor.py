"""Calls in functions that inductor compiles, and compiled parts on both sides of a call."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from lockstitch import autograd, rpc
from lockstitch.nn import RemoteModule
from lockstitch.testing import LocalCluster
from tests.cluster.rpc.test_compiled import (
    call,
    call_later,
    call_method,
    check,
    cube,
    differentiate,
    differentiate_twice,
    double,
    make_compiled,
    refer,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("g++"), reason="inductor compiles C++: it needs g++"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script.*:DeprecationWarning"),  # on import
]


@pytest.fixture(scope="module", autouse=True)
def compiler():
    """Has it begun before the first test, since what it begins stays: no more threads for it than
    that."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
        torch.compile(torch.sin, backend="inductor")(torch.ones(2))
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    "function", [call, call_later, refer, call_method, differentiate, differentiate_twice]
)
def test_what_is_compiled_gives_what_it_gives_otherwise(function):
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        check(function, "inductor", torch.arange(3.0, requires_grad=True))


def test_the_gradient_passes_through_compiled_parts_on_both_sides_of_a_call():
    linear, x = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    part = torch.compile(lambda x: linear(x).relu(), backend="inductor")
    expected = torch.autograd.grad((linear(x).relu() * 2).sum(), [x, linear.weight])
    with LocalCluster(2) as cluster, cluster["worker0"].active(), autograd.context() as context:
        autograd.backward(context, [rpc.rpc_sync("worker1", double, args=(part(x),)).sum()])
        gradients = autograd.get_gradients(context)
    torch.testing.assert_close([gradients[x], gradients[linear.weight]], list(expected))


def test_modules_and_functions_that_other_workers_compile():
    x = torch.arange(3.0, requires_grad=True)
    with LocalCluster(2) as cluster, cluster["worker0"].active(), autograd.context() as context:
        remote = RemoteModule("worker1/cpu", make_compiled, args=("inductor",))
        y = remote(x) + rpc.rpc_sync("worker1", torch.compile(cube, backend="inductor"), (x,))
        autograd.backward(context, [y.sum()])
        assert autograd.get_gradients(context)[x].tolist() == [2.0, 5.0, 14.0]
