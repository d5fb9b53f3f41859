"""Calls inside calls: pools in which every thread waits, many nests at once, long chains.

Each hop of a nest is a call that a worker makes while it serves one, so that a pool of 16 threads
is soon full of threads that wait.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import torch

from benchmarks.cases.timing import Sample, timed
from benchmarks.libraries import CALLEE, CALLER

if TYPE_CHECKING:
    from benchmarks.libraries import Library

POOL = 16
"""Threads of a worker for the functions of others, by default on both sides."""


def bounce(rpc_module: str, here: str, there: str, hops: int) -> int:
    """Runs on `here`: calls `there`, which calls back, until no hops are left."""
    if not hops:
        return 0
    rpc = importlib.import_module(rpc_module)
    arguments = (rpc_module, there, here, hops - 1)
    return 1 + int(rpc.rpc_sync(there, bounce, args=arguments))


def nests(library: Library, at_once: int, depth: int) -> Sample:
    """`at_once` nests of `depth` hops each; seconds per hop."""
    arguments = (library.rpc.__name__, CALLEE, CALLER, depth - 1)

    def all_nests() -> None:
        calls = [library.rpc.rpc_async(CALLEE, bounce, args=arguments) for _ in range(at_once)]
        assert torch.futures.wait_all(calls) == at_once * [depth - 1]

    return timed(all_nests, at_once * depth)
