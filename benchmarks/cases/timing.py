"""What a case gives: a sample, which does the thing once and returns seconds per operation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from benchmarks.libraries import Library

Sample = Callable[[], float]


def timed(action: Callable[[], Any], operations: int = 1) -> Sample:
    """Times the whole action, which does `operations` at once."""

    def sample() -> float:
        start = time.perf_counter()
        action()
        return (time.perf_counter() - start) / operations

    return sample


def timed_backward(library: Library, forward: Callable[[], torch.Tensor]) -> Sample:
    """Times only `backward` from the scalar that `forward` computes in a context of its own."""

    def sample() -> float:
        with library.dist_autograd.context() as context_id:
            loss = forward()
            start = time.perf_counter()
            library.backward(context_id, [loss])
            return time.perf_counter() - start

    return sample


def timed_local_backward(forward: Callable[[], torch.Tensor]) -> Sample:
    """The same graph in one process: what the engine takes without any worker."""

    def sample() -> float:
        loss = forward()
        start = time.perf_counter()
        loss.backward()
        return time.perf_counter() - start

    return sample
