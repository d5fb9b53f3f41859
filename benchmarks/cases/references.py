"""Remote references: one made and fetched; many made, confirmed and deleted again."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import torch

from benchmarks.cases.calls import echo
from benchmarks.cases.timing import Sample, timed
from benchmarks.libraries import CALLEE

if TYPE_CHECKING:
    from benchmarks.libraries import Library

REFERENCES = 64


def make_and_fetch(library: Library) -> Sample:
    tensor = torch.rand(4)
    return timed(lambda: library.rpc.remote(CALLEE, echo, args=(tensor,)).to_here())


def values_held(rpc_module: str) -> int:
    """Runs on the callee: how many of its values others hold references to."""
    rpc = importlib.import_module(rpc_module)
    return int(rpc._rref_context_get_debug_info()["num_owner_rrefs"])


def make_and_delete(library: Library) -> Sample:
    """Until the owner has let all of them go."""
    rpc, tensor = library.rpc, torch.rand(4)
    module = rpc.__name__
    before = rpc.rpc_sync(CALLEE, values_held, args=(module,))

    def make_all_and_delete() -> None:
        references = [rpc.remote(CALLEE, echo, args=(tensor,)) for _ in range(REFERENCES)]
        torch.futures.wait_all([reference._get_future() for reference in references])
        references.clear()
        while rpc.rpc_sync(CALLEE, values_held, args=(module,)) > before:
            pass

    return timed(make_all_and_delete, REFERENCES)
