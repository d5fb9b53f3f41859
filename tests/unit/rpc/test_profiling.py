"""Ranges bear the incumbent's names."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.futures import Future
from torch.profiler import ProfilerActivity, profile

from lockstitch.rpc.profiling import RPCExecMode, function_name, is_profiling, profiling_key


def local_function() -> None:
    pass


def test_keys() -> None:
    key = profiling_key(RPCExecMode.ASYNC, "aten::add", "trainer", "ps")
    assert key == "rpc_async#aten::add(trainer -> ps)"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.add, "aten::add"),
        (local_function, "local_function"),
        (min, "min"),
        (Future.wait, "Future.wait"),
        (functools.partial(local_function), "partial"),
    ],
)
def test_names_of_functions(function, name) -> None:
    assert function_name(function) == name


def test_a_running_profiler_is_noticed() -> None:
    assert not is_profiling()
    with profile(activities=[ProfilerActivity.CPU]):
        assert is_profiling()
    assert not is_profiling()
