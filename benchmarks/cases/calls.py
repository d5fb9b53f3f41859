"""Calls: nothing, a few floats, many at once, and by reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.cases.timing import Sample, timed
from benchmarks.libraries import CALLEE

if TYPE_CHECKING:
    from benchmarks.libraries import Library

IN_FLIGHT = 64


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


def call_nothing_in_flight(library: Library) -> Sample:
    def wave() -> None:
        calls = [library.rpc.rpc_async(CALLEE, nothing) for _ in range(IN_FLIGHT)]
        torch.futures.wait_all(calls)

    return timed(wave, IN_FLIGHT)


def call_echo_in_flight(library: Library) -> Sample:
    tensor = torch.rand(4)

    def wave() -> None:
        calls = [library.rpc.rpc_async(CALLEE, echo, args=(tensor,)) for _ in range(IN_FLIGHT)]
        torch.futures.wait_all(calls)

    return timed(wave, IN_FLIGHT)


def make_and_fetch(library: Library) -> Sample:
    tensor = torch.rand(4)
    return timed(lambda: library.rpc.remote(CALLEE, echo, args=(tensor,)).to_here())
