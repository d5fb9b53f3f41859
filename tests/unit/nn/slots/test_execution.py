"""What a slot does with requests: its graphs, its changes, what it tells of itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from lockstitch.modes import Modes
from lockstitch.nn.slots.base import BackwardRequest, Changes, Request, VjpOf
from lockstitch.nn.slots.execution import Executor
from lockstitch.nn.slots.lifting import fill, lift
from lockstitch.torch_internals import autograd


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.unused = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("fixed", torch.ones(1))
        self.factor = 1.0

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return x * self.weight * self.factor * self.fixed, x.detach()


@pytest.fixture
def executor():
    module = Counting()
    return Executor(module, [module.weight, module.unused])


def request(x, number=1, wants=True, **others):
    skeleton, tensors = lift(((x,), {}))
    modes = Modes.of_this_thread()
    return Request(number, skeleton, tensors, [wants], modes, torch.float32, 0, **others)


X = torch.ones(4, 2)


def back(executor, number=1, keeps_graph=False, **others):
    return executor.backward(BackwardRequest(number, [torch.ones(4, 2)], keeps_graph, **others))


def test_outputs_come_detached_with_what_takes_gradients(executor):
    outcome = executor.forward(request(X))
    assert outcome.requires_grad == [True, False]
    assert not any(each.requires_grad for each in outcome.tensors)


def test_gradients_of_inputs_and_leaves_and_none_for_what_was_not_used(executor):
    executor.forward(request(X))
    found = back(executor)
    assert found.inputs[0].tolist() == [[2, 3]] * 4
    assert found.leaves[0].tolist() == [4, 4]
    assert found.leaves[1] is None
    assert executor.leaves[0].grad is None


def test_an_input_that_wants_no_gradient_has_none(executor):
    executor.forward(request(X, wants=False))
    assert back(executor).inputs == ()


@pytest.mark.parametrize("ends", [back, lambda executor: executor.release(1)])
def test_a_graph_is_gone_after_its_backward_pass_or_its_release(executor, ends):
    executor.forward(request(X))
    ends(executor)
    with pytest.raises(RuntimeError, match="graph of this slot's forward pass is gone"):
        back(executor)


def test_a_graph_that_is_kept_can_be_gone_through_again(executor):
    executor.forward(request(X))
    first = back(executor, keeps_graph=True)
    assert torch.equal(back(executor).leaves[0], first.leaves[0])


def test_gradients_that_stay_are_summed_until_they_are_collected(executor):
    for number in (1, 2):
        executor.forward(request(X, number))
        assert back(executor, number, keeps_gradients=True).leaves == ()
    total, unused = executor.collect()
    assert total.tolist() == [8, 8]
    assert unused is None
    assert executor.collect() == []


def test_buffers_that_were_written_are_named(executor):
    assert executor.forward(request(X)).written == [0]
    told = Changes([(0, "training", False)])
    assert executor.forward(request(X, 2, changes=told)).written == []


def test_changes_come_before_the_pass(executor):
    changes = Changes([(0, "factor", 10.0)], [(1, torch.tensor([5.0]))])
    outcome = executor.forward(request(X, changes=changes))
    assert outcome.tensors[0].tolist() == [[100, 150]] * 4


def test_without_grad_mode_no_graph_is_kept(executor):
    modes = dataclasses.replace(Modes.of_this_thread(), is_grad_enabled=False)
    outcome = executor.forward(dataclasses.replace(request(X), modes=modes))
    assert outcome.requires_grad == [False, False]
    with pytest.raises(RuntimeError, match="is gone"):
        back(executor)


def test_random_numbers_follow_the_seed_of_the_request():
    executor = Executor(nn.Dropout(), [])
    with torch.random.fork_rng():
        first, second, third = (
            executor.forward(dataclasses.replace(request(torch.ones(50)), seed=seed)).tensors[0]
            for seed in (1, 1, 2)
        )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_a_pass_that_failed_leaves_no_gradients_for_the_next(executor):
    def fail(_):
        raise ArithmeticError("on the way back")

    x = X.clone().requires_grad_()
    executor.forward(request(x))
    executor.forward(request(X, 2))
    handle = executor.leaves[0].register_hook(fail)
    with pytest.raises(ArithmeticError):
        back(executor)
    handle.remove()
    assert back(executor, 2).leaves[0].tolist() == [4, 4]
    assert executor.leaves[0].grad is None


def test_what_is_hooked_to_the_accumulation_is_left_to_the_caller():
    module, seen = Counting(), []
    accumulator = torch.autograd.graph.get_gradient_edge(module.weight).node
    accumulator.register_hook(lambda *_: seen.append("accumulated"))
    executor = Executor(module, [module.weight, module.unused])
    executor.forward(request(X))
    assert back(executor).leaves[0].tolist() == [4, 4]
    assert seen == []
    assert module.weight.grad is None


def test_the_engine_needs_no_table_of_leaves_where_nothing_is_hooked(executor, monkeypatch):
    asked = []
    run_backward = autograd._run_backward

    def run(roots, gradients, keeps, creates, inputs, **others):
        asked.append(inputs)
        return run_backward(roots, gradients, keeps, creates, inputs, **others)

    executor.forward(request(X))
    monkeypatch.setattr(autograd, "_run_backward", run)
    assert back(executor).leaves[0].tolist() == [4, 4]
    assert asked == [()]


def vjp(executor, of=1, number=2, **options):
    """The gradients of `X` and of the leaves, on a graph, as functions of a gradient of ones."""
    skeleton, tensors = lift(((torch.ones(4, 2),), {}))
    modes = Modes.of_this_thread()
    options.setdefault("keeps_graph", True)
    asked = Request(
        number, skeleton, tensors, [True], modes, torch.float32, 0, vjp_of=VjpOf(of, **options)
    )
    return executor.forward(asked)


def test_gradients_are_outputs_where_they_are_to_be_differentiated(executor):
    executor.forward(request(X))
    outcome = vjp(executor)
    of_x, of_weight, of_unused = fill(outcome.skeleton, outcome.tensors)
    assert (of_x.tolist(), of_weight.tolist(), of_unused) == ([[2, 3]] * 4, [4, 4], None)
    found = executor.backward(BackwardRequest(2, [torch.ones(4, 2), torch.ones(2)], False))
    # Of x, of the gradient that was given, and of the weight.
    assert [each.tolist() for each in found.inputs] == [[[1, 1]] * 4, [[3, 4]] * 4]
    assert found.leaves[0].tolist() == [4, 4]
    assert back(executor).leaves[0].tolist() == [4, 4]


def test_gradients_to_be_differentiated_are_those_of_the_module_as_it_was(executor):
    executor.forward(request(X))
    changes = Changes([(0, "factor", 5.0)], [(1, torch.full((1,), 7.0))])
    executor.forward(request(X, number=2, changes=changes))
    outcome = vjp(executor, number=3, keeps_graph=False)
    assert fill(outcome.skeleton, outcome.tensors)[0].tolist() == [[2, 3]] * 4
    with pytest.raises(RuntimeError, match="graph of this slot's forward pass is gone"):
        vjp(executor, number=4)
