"""Large tensors: one way, and there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.cases.calls import echo
from benchmarks.cases.timing import Sample, timed
from benchmarks.libraries import CALLEE

if TYPE_CHECKING:
    from benchmarks.libraries import Library


def take(tensor: torch.Tensor) -> None:
    """Runs on the callee, where the tensor arrives and is dropped."""


def send(library: Library, size: int) -> Sample:
    tensor = torch.rand(size // 4)
    return timed(lambda: library.rpc.rpc_sync(CALLEE, take, args=(tensor,)))


def send_and_get_back(library: Library, size: int) -> Sample:
    tensor = torch.rand(size // 4)
    return timed(lambda: library.rpc.rpc_sync(CALLEE, echo, args=(tensor,)))
