"""`horovod.common.util`: the small questions that programs ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from lockstitch.hvd.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "is_iterable",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is 1, 2, 4, 8, …"""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[T], num_parts: int) -> list[list[T]]:
    """Consecutive parts of nearly the same length, the longer ones first; empty ones left out."""
    share, rest = divmod(len(values), num_parts)
    begins = [share * part + min(part, rest) for part in range(num_parts + 1)]
    parts = [list(values[begins[part] : begins[part + 1]]) for part in range(num_parts)]
    return [part for part in parts if part]


def is_iterable(value: Any) -> bool:
    """Whether one can go through it."""
    return isinstance(value, Iterable)
