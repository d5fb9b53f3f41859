"""Ranges bear the incumbent's names and last until the answer is there."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.futures import Future
from torch.profiler import ProfilerActivity, profile

from lockstitch.rpc.profiling import (
    RPCExecMode,
    function_name,
    is_profiling,
    profiling_key,
    record_until_done,
)


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


def test_a_range_lasts_until_the_future_is_done() -> None:
    future: Future[int] = Future()
    assert not is_profiling()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        assert is_profiling()
        assert record_until_done("outer", lambda: future, lambda f: f) is future
        with torch.profiler.record_function("inner"):
            pass
        future.set_result(1)
    times = {event.name: event.time_range for event in profiler.events()}
    assert times["outer"].start <= times["inner"].start <= times["inner"].end <= times["outer"].end


def test_a_call_that_cannot_be_made_ends_its_range() -> None:
    def fail() -> Future[int]:
        raise ValueError("no")

    with (
        profile(activities=[ProfilerActivity.CPU]) as profiler,
        pytest.raises(ValueError, match="no"),
    ):
        record_until_done("failing", fail, lambda f: f)
    assert "failing" in [event.name for event in profiler.events()]
