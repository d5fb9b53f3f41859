"""Latency of a call to a worker whose main occupation is something else."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import torch

from benchmarks.cases.calls import nothing
from benchmarks.libraries import CALLEE

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.cases.timing import Sample
    from benchmarks.libraries import Library

BUSY_SECONDS = 0.03
MATRIX = 768


def run_python() -> int:
    """Runs on the callee, and holds the GIL whenever it can."""
    end, total = time.perf_counter() + BUSY_SECONDS, 0
    while time.perf_counter() < end:
        for number in range(100):
            total += number
    return total


def run_python_in_short_turns() -> int:
    """The same, while the callee's interpreter lets others in after half a millisecond: what the
    option `switch_interval` sets, and can be set for the incumbent too."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        return run_python()
    finally:
        sys.setswitchinterval(before)


def run_operators() -> None:
    """Runs on the callee: operators of some milliseconds, which let the GIL go."""
    end = time.perf_counter() + BUSY_SECONDS
    matrix = torch.ones(MATRIX, MATRIX)
    while time.perf_counter() < end:
        torch.mm(matrix, matrix)


def call_a_busy_worker(library: Library, occupation: Callable[[], object]) -> Sample:
    """A no-op while the occupation of another call is going on."""

    def sample() -> float:
        occupied = library.rpc.rpc_async(CALLEE, occupation)
        library.rpc.rpc_sync(CALLEE, nothing)  # behind the other one: it runs by now
        start = time.perf_counter()
        library.rpc.rpc_sync(CALLEE, nothing)
        seconds = time.perf_counter() - start
        occupied.wait()
        return seconds

    return sample
