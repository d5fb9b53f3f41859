"""Calls: nothing, a few floats, many at once, from both sides, from many threads."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING

import torch

from benchmarks.cases.timing import Sample, timed
from benchmarks.libraries import CALLEE, CALLER, THIRD

if TYPE_CHECKING:
    from benchmarks.libraries import Library

CALLS_OF_EACH_SIDE = 100
CALLER_THREADS = 8


def nothing() -> None:
    pass


def echo(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def call_nothing(library: Library) -> Sample:
    return timed(lambda: library.rpc.rpc_sync(CALLEE, nothing))


def call_echo(library: Library) -> Sample:
    tensor = torch.rand(4)
    return timed(lambda: library.rpc.rpc_sync(CALLEE, echo, args=(tensor,)))


def call_builtin(library: Library) -> Sample:
    tensor = torch.rand(4)
    return timed(lambda: library.rpc.rpc_sync(CALLEE, torch.add, args=(tensor, tensor)))


def call_nothing_in_flight(library: Library, count: int) -> Sample:
    def wave() -> None:
        calls = [library.rpc.rpc_async(CALLEE, nothing) for _ in range(count)]
        torch.futures.wait_all(calls)

    return timed(wave, count)


def call_echo_in_flight(library: Library, count: int) -> Sample:
    tensor = torch.rand(4)

    def wave() -> None:
        calls = [library.rpc.rpc_async(CALLEE, echo, args=(tensor,)) for _ in range(count)]
        torch.futures.wait_all(calls)

    return timed(wave, count)


def call_each_of_two(library: Library) -> Sample:
    """Both at once."""

    def each() -> None:
        calls = [library.rpc.rpc_async(name, nothing) for name in (CALLEE, THIRD)]
        for call in calls:
            call.wait()

    return timed(each)


def call_often(rpc_module: str, to: str, times: int) -> None:
    """Runs on either side."""
    rpc = importlib.import_module(rpc_module)
    for _ in range(times):
        rpc.rpc_sync(to, nothing)


def call_from_both_sides(library: Library) -> Sample:
    module = library.rpc.__name__

    def both() -> None:
        theirs = library.rpc.rpc_async(
            CALLEE, call_often, args=(module, CALLER, CALLS_OF_EACH_SIDE)
        )
        call_often(module, CALLEE, CALLS_OF_EACH_SIDE)
        theirs.wait()

    return timed(both, 2 * CALLS_OF_EACH_SIDE)


def call_from_many_threads(library: Library) -> Sample:
    each = CALLS_OF_EACH_SIDE // 2
    arguments = (library.rpc.__name__, CALLEE, each)

    def all_at_once() -> None:
        threads = [
            threading.Thread(target=call_often, args=arguments) for _ in range(CALLER_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return timed(all_at_once, CALLER_THREADS * each)
