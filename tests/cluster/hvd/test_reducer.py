from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from lockstitch import hvd
from lockstitch.hvd.process_sets import global_process_set
from lockstitch.hvd.reducer import GradientReducer, ReducerOptions
from tests.cluster.hvd.ranks import on_ranks

OPTIONS = ReducerOptions(hvd.Compression.none, global_process_set)


def test_gradient_is_under_way_as_soon_as_it_is_there():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        reducer = GradientReducer(OPTIONS, {one: "one", two: "two"}, [], passes=1)
        reducer.watch([one, two])
        (one * hvd.rank()).sum().backward()
        assert reducer.is_under_way
        assert not reducer.is_finished
        reducer.finish([one, two])
        assert reducer.is_finished
        assert not reducer.is_under_way
        return one.grad.item(), two.grad.item()

    assert on_ranks(2, program) == [(0.5, 0.0)] * 2


def test_group_waits_for_its_last_member():
    def program():
        one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
        reducer = GradientReducer(OPTIONS, {one: "one", two: "two"}, [[one, two]], passes=1)
        reducer.watch([one, two])
        one.sum().backward()
        before = reducer.is_under_way
        two.sum().backward()
        after = reducer.is_under_way
        reducer.finish([one, two])
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
        weight.sum().backward()
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            reducer.finish([weight])
        assert not reducer.is_under_way
        same = nn.Parameter(torch.zeros(1))
        same.grad = torch.ones(1) * hvd.rank()
        reducer.finish([same])
        return same.grad.item()

    assert on_ranks(2, program) == [0.5] * 2
