"""Large gradients are added up where they arise, with the result that capturing them has."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from lockstitch.autograd.context import DistAutogradContext
from lockstitch.nn.pipelining import adding, graphs
from lockstitch.nn.pipelining.graphs import Gradients, Graph
from lockstitch.nn.pipelining.known_leaves import KnownLeaves


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(graphs, "LARGE_BYTES", 1)


@pytest.fixture
def runs(monkeypatch):
    """Whether each pass ran so."""
    noted: list[bool] = []
    run = adding.run_past_leaves

    def note(*args):
        noted.append(run(*args))
        return noted[-1]

    monkeypatch.setattr(adding, "run_past_leaves", note)
    return noted


def go(module, xs, context=None, known=None, before=lambda number: None):
    """Passes of one stage; returns the context and the gradients of the inputs."""
    context, known = context or DistAutogradContext(1, None), known or KnownLeaves()
    found = []
    for number, x in enumerate(xs):
        before(number)
        graph = Graph(known)
        output = module(graph.enter(x.clone(), wanted=True))
        graph.leave([output], [], [])
        del output
        found += graph.run_backward(context, Gradients([torch.ones(x.shape)])).inputs
    return context, found


def expected(module, xs):
    module.zero_grad()
    inputs = [x.clone().requires_grad_() for x in xs]
    for x in inputs:
        module(x).backward(torch.ones(x.shape))
    return [x.grad for x in inputs]


def inputs(count=4):
    return [torch.randn(2, 3) for _ in range(count)]


class Tied(nn.Module):
    """Uses a parameter twice, one not at all, and one as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)
        self.bias = nn.Parameter(torch.ones(2, 3))

    def forward(self, x):
        return torch.tanh(self.linear(torch.tanh(self.linear(x)))) + self.bias


def test_sums_are_those_of_one_process_and_nothing_gathers_in_grad(runs):
    module, xs = Tied(), inputs()
    context, found = go(module, xs)
    assert runs == [True] * 3  # the first has nothing to add to
    assert all(parameter.grad is None for parameter in module.parameters())
    for ours, theirs in zip(found, expected(module, xs), strict=True):
        assert torch.equal(ours, theirs)
    assert len(context.gradients) == 3
    for parameter, gradient in context.gradients.items():
        assert torch.equal(gradient, parameter.grad)


def test_little_is_captured(runs, monkeypatch):
    monkeypatch.setattr(graphs, "LARGE_BYTES", 1 << 20)
    go(Tied(), inputs())
    assert runs == []


def test_hooks_of_tensors_run_before_and_those_of_nodes_as_ever(runs):
    module, xs = Tied(), inputs(6)
    seen = []

    def change(number):
        if number == 2:
            module.linear.weight.register_hook(lambda gradient: gradient * 2)
        if number == 4:
            node = get_gradient_edge(module.bias).node
            node.register_hook(lambda *_: seen.append(1))
            module.keeps = node

    context, _ = go(module, xs, before=change)
    assert runs == [True] * 3
    assert seen == [1, 1]
    clean = Tied()
    clean.load_state_dict(module.state_dict())
    expected(clean, [*xs[:2], *xs[2:], *xs[2:]])
    assert torch.equal(context.gradients[module.bias], torch.full((2, 3), 6.0))
    torch.testing.assert_close(context.gradients[module.linear.weight], clean.linear.weight.grad)


def test_another_thread_that_goes_back_through_the_same_leaf_keeps_its_gradient(runs):
    module, xs = Tied(), inputs()

    class Meets(torch.autograd.Function):
        """While our pass runs, another thread goes back."""

        @staticmethod
        def forward(_ctx, x):
            return x.clone()

        @staticmethod
        def backward(_ctx, gradient):
            def go_back():
                with torch.enable_grad():
                    (module.linear.weight * 5).sum().backward()

            thread = threading.Thread(target=go_back)
            thread.start()
            thread.join()
            return gradient

    class Meeting(nn.Module):
        def forward(self, x):
            return Meets.apply(module(x))

    context, _ = go(Meeting(), xs)
    assert runs == [True] * 3
    assert torch.equal(module.linear.weight.grad, torch.full((3, 3), 20.0))
    expected(module, xs)
    for parameter, gradient in context.gradients.items():
        assert torch.equal(gradient, parameter.grad)


def test_a_pass_that_fails_leaves_no_hook_behind(runs):
    module, xs = Tied(), inputs(3)

    def fail(_gradient):
        raise KeyError("no")

    def change(number):
        if number == 2:
            module.bias.register_hook(fail)

    with pytest.raises(KeyError):
        go(module, xs, before=change)
    module.bias._backward_hooks.clear()
    context, _ = go(module, xs)
    expected(module, xs)
    assert runs == [True] * 3
    for parameter, gradient in context.gradients.items():
        assert torch.equal(gradient, parameter.grad)


def test_a_released_context_gets_no_more():
    context = DistAutogradContext(1, None)
    leaf = torch.ones(3, requires_grad=True)
    edges = [get_gradient_edge(leaf)]
    assert context.sums_at(edges) == []
    context.add_gradients(edges, [torch.ones(3)])
    (total,) = context.sums_at(edges)
    context.add_to(total, torch.ones(3))
    context.release(KeyError())
    context.add_to(total, torch.ones(3))
    assert total.tolist() == [2, 2, 2]
