from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from lockstitch import hvd
from lockstitch.collectives import SUM, LocalSessions
from lockstitch.hvd.exchange import ReducerOptions
from lockstitch.hvd.job import active
from lockstitch.hvd.process_sets import global_process_set
from lockstitch.hvd.reducer import GradientReducer
from lockstitch.runtime.freed_memory import MOST_KEPT_BLOCK_BYTES
from tests.cluster.hvd.ranks import on_ranks

OPTIONS = ReducerOptions(hvd.Compression.none, global_process_set)
# Of sums, what is missing is filled with zeros at the step only.
SUMS = ReducerOptions(hvd.Compression.none, global_process_set, SUM)


def test_gradient_is_under_way_as_soon_as_it_is_there():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        reducer = GradientReducer(SUMS, {one: "one", two: "two"}, [], passes=1)
        reducer.watch([one, two])
        (one * hvd.rank()).sum().backward()
        assert reducer.is_under_way
        assert not reducer.is_finished([one, two])
        reducer.finish([one, two])
        assert reducer.is_finished([one, two])
        assert not reducer.is_under_way
        return one.grad.item(), two.grad.item()

    assert on_ranks(2, program) == [(1.0, 0.0)] * 2


def test_gradients_are_reduced_when_backward_returns():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        reducer = GradientReducer(OPTIONS, {one: "one", two: "two"}, [], passes=1)
        reducer.watch([one, two])
        (one * hvd.rank()).sum().backward()
        assert reducer.is_finished([one, two])
        assert reducer.without_gradient == ["two"]
        return one.grad.item(), two.grad.item()

    assert on_ranks(2, program) == [(0.5, 0.0)] * 2


def test_a_second_pass_through_other_parameters_adds_to_what_is_reduced():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        reducer = GradientReducer(OPTIONS, {one: "one", two: "two"}, [], passes=1)
        reducer.watch([one, two])
        steps = []
        for _ in range(2):
            under_way = []
            # Each rank begins with another parameter, and so meets the zeros of the other.
            for parameter in (one, two)[:: 1 if hvd.rank() else -1]:
                (parameter * (1 + hvd.rank())).sum().backward()
                under_way.append(reducer.is_under_way)
            reducer.finish([one, two])
            steps.append((one.grad.item(), two.grad.item(), under_way))
            reducer.reset()
            one.grad = two.grad = None
        return steps

    # The second time zeros are not sent before it is known that they are right.
    learned = [(1.5, 1.5, [False, False]), (1.5, 1.5, [True, False])]
    assert on_ranks(2, program) == [learned] * 2


def test_a_gradient_that_is_changed_under_way_is_told():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        reducer = GradientReducer(SUMS, {one: "one", two: "two"}, [], passes=1)
        reducer.watch([one, two])
        one.sum().backward()
        one.grad.mul_(0.5)
        with pytest.raises(RuntimeError, match="'one' was changed while .* call synchronize"):
            reducer.finish([one, two])
        reducer.reset()
        one.grad = None
        (one + two).sum().backward()
        one.grad.mul_(0.5)
        reducer.finish([one, two])
        return one.grad.item()

    assert on_ranks(2, program) == [1.0] * 2


def test_backward_does_not_wait_for_who_waits_for_this_rank():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        reducer = GradientReducer(SUMS, {one: "one", two: "two"}, [], passes=1)
        reducer.watch([one, two])
        (one + two if hvd.rank() else one).sum().backward()  # rank 1 has all of its gradients …
        loss = hvd.allreduce(torch.ones(1), name="loss")  # … but rank 0 comes here first
        reducer.finish([one, two])
        return loss.item(), two.grad.item()

    assert on_ranks(2, program) == [(1.0, 1.0)] * 2


def test_a_new_gradient_begins_anew():
    def program():
        weight = nn.Parameter(torch.zeros(1))
        reducer = GradientReducer(OPTIONS, {weight: "w"}, [], passes=1)
        reducer.watch([weight])
        for _ in range(3):
            weight.grad = None  # as by `module.zero_grad()`, of which the reducer hears nothing
            (weight * hvd.rank()).sum().backward()
        return weight.grad.item()

    assert on_ranks(2, program) == [0.5] * 2


def test_group_waits_for_its_last_member():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        three = nn.Parameter(torch.zeros(1))
        reducer = GradientReducer(SUMS, {}, [[one, two]], passes=1)
        reducer.watch([one, two, three])
        one.sum().backward()
        before = reducer.is_under_way
        two.sum().backward()
        after = reducer.is_under_way
        reducer.finish([one, two, three])
        return before, after

    assert on_ranks(2, program) == [(False, True)] * 2


def test_a_reducer_that_is_gone_reduces_nothing():
    def program():
        weight = nn.Parameter(torch.zeros(1))
        old = GradientReducer(OPTIONS, {}, [], passes=1)
        old.watch([weight])
        del old
        gc.collect()
        for _ in range(2):  # a second pass would be one too many for it
            weight.sum().backward()
        return weight.grad.item()

    assert on_ranks(2, program) == [2.0] * 2


def test_alone_there_is_nothing_to_reduce():
    def program():
        weight = nn.Parameter(torch.zeros(1))
        reducer = GradientReducer(OPTIONS, {}, [], passes=1)
        reducer.watch([weight])
        weight.sum().backward()
        assert not reducer.is_needed
        assert not reducer.is_under_way

    on_ranks(1, program)


def test_mismatch_is_raised_and_the_next_step_is_whole():
    def program():
        weight = nn.Parameter(torch.zeros(2 + hvd.rank()))
        reducer = GradientReducer(OPTIONS, {weight: "w"}, [], passes=1)
        reducer.watch([weight])
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            weight.sum().backward()
        assert not reducer.is_under_way
        same = nn.Parameter(torch.zeros(1))
        same.grad = torch.ones(1) * hvd.rank()
        reducer.finish([same])
        return same.grad.item()

    assert on_ranks(2, program) == [0.5] * 2


def test_memory_of_gradients_on_the_cpu_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr("lockstitch.hvd.reducer.keep_freed_memory", kept.append)
    with LocalSessions(1) as sessions, active(sessions[0]):
        for device in ("meta", "cpu"):
            parameter = torch.zeros(1, device=device, requires_grad=True)
            hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))
    assert kept == [MOST_KEPT_BLOCK_BYTES]
