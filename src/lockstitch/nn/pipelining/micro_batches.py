"""A batch cut into micro-batches: their sizes differ by one row at most, the larger ones first.

What is cut, and what goes to each micro-batch whole, is the same as for `scatter`: tensors within
any structure are cut along a dimension, other values are repeated, and `Replicate` and `Shard` say
otherwise of one argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lockstitch.nn.parallel.containers import unpack_container
from lockstitch.nn.parallel.scatter_gather import Replicate, Shard, cut_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def count_rows(arguments: Mapping[str, Any], dim: int) -> int | None:
    """How long the tensors are that are to be cut along `dim`; None where there is none. The
    arguments' names are those in errors: raises `ValueError` where two lengths differ, or where a
    tensor has no such dimension."""
    first: tuple[str, int] | None = None
    for name, value in arguments.items():
        for where, tensor, axis in cut_tensors(value, dim, name):
            if not -tensor.dim() <= axis < tensor.dim():
                raise ValueError(
                    f"{where} has shape {tuple(tensor.shape)} and no dimension {axis} to cut; give "
                    "it as Replicate(…) if every micro-batch is to have all of it"
                )
            if first is None:
                first = where, tensor.shape[axis]
            elif first[1] != tensor.shape[axis]:
                raise ValueError(
                    f"{first[0]} has {first[1]} rows, but {where} has {tensor.shape[axis]}; mark "
                    "what is not part of the batch with Replicate(…), and what has the batch in "
                    "another dimension with Shard(…, dim)"
                )
    return None if first is None else first[1]


def sizes_of(rows: int, chunks: int) -> list[int]:
    """The rows of each of `chunks` micro-batches. Raises `ValueError` for fewer rows than that."""
    if rows < chunks:
        raise ValueError(
            f"a batch of {rows} rows cannot be cut into {chunks} micro-batches: give a larger "
            "batch, or make the pipeline with fewer chunks"
        )
    size, more = divmod(rows, chunks)
    return [size + (number < more) for number in range(chunks)]


def cut(thing: Any, sizes: Sequence[int], dim: int) -> list[Any]:
    """`thing` for each micro-batch. Tensors are views of those in `thing`, without a history."""
    if isinstance(thing, torch.Tensor):
        return list(torch.split(thing.detach(), list(sizes), dim))
    if isinstance(thing, Shard):
        return cut(thing.value, sizes, thing.dim)
    if isinstance(thing, Replicate):
        return [thing.value] * len(sizes)
    unpacked = unpack_container(thing)
    if unpacked is None:
        return [thing] * len(sizes)
    columns = [cut(child, sizes, dim) for child in unpacked.children]
    return [unpacked.rebuild(list(children)) for children in zip(*columns, strict=True)]
