"""A backward pass in two parts gives what one in one part gives, and computes inputs first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, strategies
from torch import nn

from lockstitch.autograd.context import DistAutogradContext
from lockstitch.nn.pipelining.graphs import Gradients, Graph
from lockstitch.nn.pipelining.known_leaves import KnownLeaves

if TYPE_CHECKING:
    from collections.abc import Callable

    Forward = Callable[..., torch.Tensor]


def run_both(
    forward: Forward, inputs: list[torch.Tensor]
) -> tuple[DistAutogradContext, set[torch.Tensor], list[torch.Tensor | None]]:
    """Runs both parts; returns the context, the leaves that had their gradients after the first,
    and the gradients of the inputs."""
    graph, context = Graph(KnownLeaves()), DistAutogradContext(1, None)
    output = forward(*[graph.enter(each, True) for each in inputs])
    graph.leave([output], [], [])
    found = graph.run_backward(context, Gradients([torch.ones_like(output)]), splits=True)
    early = set(context.gradients)
    graph.run_rest(context)
    return context, early, found.inputs


def check(forward: Forward, leaves: list[torch.Tensor], inputs: list[torch.Tensor]) -> set:
    """Compares with torch's own backward pass; returns the leaves whose gradients came first."""
    context, early, found = run_both(forward, inputs)
    plain = [each.clone().requires_grad_() for each in inputs]
    forward(*plain).sum().backward()
    for own, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(own, expected.grad, rtol=0, atol=0)
    for leaf in leaves:
        torch.testing.assert_close(context.gradients[leaf], leaf.grad, rtol=0, atol=0)
        leaf.grad = None
    return early


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape).double())


def test_parameters_of_layers_come_later():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    assert check(model, list(model.parameters()), [torch.randn(5, 3).double()]) == set()


def test_what_several_layers_share_comes_first():
    weight, own = parameter(3, 3), parameter(3, 3)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight) @ own @ weight

    assert check(forward, [weight, own], [torch.randn(2, 3).double()]) == {weight}


def test_a_transposed_weight_that_is_used_twice_comes_first():
    weight = parameter(3, 3)

    def forward(x: torch.Tensor) -> torch.Tensor:
        turned = weight.t()
        return torch.tanh(x @ turned) @ turned

    assert check(forward, [weight], [torch.randn(2, 3).double()]) == {weight}


def test_an_output_that_leads_to_no_input_gives_its_gradients_first():
    bias, weight, graph, context = (
        parameter(3),
        parameter(3),
        Graph(KnownLeaves()),
        DistAutogradContext(1, None),
    )
    x = graph.enter(torch.ones(3).double(), True)
    graph.leave([x * weight, bias * 2], [], [])
    given = Gradients([torch.ones(3).double(), torch.ones(3).double()])
    graph.run_backward(context, given, splits=True)
    assert set(context.gradients) == {bias}
    graph.run_rest(context)
    assert context.gradients[bias].tolist() == [2, 2, 2]
    assert context.gradients[weight].tolist() == [1, 1, 1]


def test_recurrent_layers_share_their_weights_over_time():
    model = nn.LSTM(3, 4).double()
    check(lambda x: model(x)[0], list(model.parameters()), [torch.randn(5, 2, 3).double()])


def test_without_inputs_all_of_it_comes_later():
    weight, graph, context = parameter(3), Graph(KnownLeaves()), DistAutogradContext(1, None)
    x = graph.enter(torch.ones(3).double(), False)
    graph.leave([(weight * x).sum()], [], [])
    found = graph.run_backward(context, Gradients([torch.ones(()).double()]), splits=True)
    assert (found.inputs, context.gradients) == ([None], {})
    graph.run_rest(context)
    assert context.gradients[weight].tolist() == [1, 1, 1]


def test_hooks_of_nodes_see_each_gradient_once():
    weight, seen = parameter(3, 3), []

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x @ weight
        if isinstance(y.grad_fn, torch.autograd.graph.Node):
            y.grad_fn.register_prehook(lambda grads: seen.append(grads) or tuple(grads))
        return torch.tanh(y)

    check(forward, [weight], [torch.randn(2, 3).double()])
    assert len(seen) == 2  # of our pass, and of torch's


def test_hooks_of_leaves_see_the_gradient_once():
    weight, seen = parameter(3, 3), []
    weight.register_hook(seen.append)
    weight.register_post_accumulate_grad_hook(lambda _: seen.append(None))
    run_both(lambda x: torch.tanh(x @ weight), [torch.randn(2, 3).double()])
    assert len([each for each in seen if each is not None]) == 1


@given(strategies.lists(strategies.integers(0, 5), max_size=8), strategies.integers(0, 1 << 20))
def test_random_graphs_give_what_one_pass_gives(steps, seed):
    torch.manual_seed(seed)
    weights = [parameter(3, 3) for _ in range(3)]
    inputs = [torch.randn(3, 3).double() for _ in range(2)]

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for at, step in enumerate(steps):
            weight = weights[(seed >> at) % 3]
            if step == 0:
                x = x @ weight
            elif step == 1:
                y = torch.tanh(y) * weight
            elif step == 2:
                x, y = y, x + y
            elif step == 3:
                x = x + torch.exp(-(weight**2))
            elif step == 4:
                x = nn.functional.layer_norm(x, (3,), weight[0], weight[1])
            else:
                y = y.cumsum(0) @ weight.t()
        return x + 2 * y

    context, _, found = run_both(forward, inputs)
    plain = [each.clone().requires_grad_() for each in inputs]
    forward(*plain).sum().backward()
    for own, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(own, expected.grad, rtol=1e-12, atol=1e-12)
    for weight in weights:
        assert (weight in context.gradients) == (weight.grad is not None)
        if weight.grad is not None:
            torch.testing.assert_close(
                context.gradients[weight], weight.grad, rtol=1e-12, atol=1e-12
            )


def test_saved_tensors_live_until_the_second_part():
    saved = []

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, gradient):
            saved.append(ctx.needs_input_grad)
            x, weight = ctx.saved_tensors
            return gradient * weight, gradient * x

    weight = parameter(3)
    graph, context = Graph(KnownLeaves()), DistAutogradContext(1, None)
    output = Noting.apply(graph.enter(torch.ones(3).double(), True), weight)
    graph.leave([output], [], [])
    graph.run_backward(context, Gradients([torch.ones(3).double()]), splits=True)
    graph.run_rest(context)
    assert len(saved) == 2
    with pytest.raises(RuntimeError, match="second time"):
        output.sum().backward()
