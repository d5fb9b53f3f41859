"""Structures of tensors cut into one structure for each place, and joined again.

A tensor is cut along `dim`; everything else goes to every place by reference. All tensors that are
cut must be of one length there: the original silently drops the rows that the shortest lacks.
`Replicate` and `Shard` say what else to do with a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import torch

from lockstitch.devices.kinds import HOST, is_host
from lockstitch.nn.parallel._functions import Broadcast, Gather, Scatter
from lockstitch.nn.parallel.containers import unpack_container
from lockstitch.nn.parallel.places import Place, device_of, devices_of

__all__ = ["scatter", "scatter_kwargs", "gather", "Replicate", "Shard"]

T = TypeVar("T")

COMPARABLE = (bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.device)


@dataclass(frozen=True)
class Replicate(Generic[T]):
    """Marks an argument, a tensor or a structure of them, that every slot gets whole: a mask for
    all rows, a table. The module is called with the value, not with this mark."""

    value: T


@dataclass(frozen=True)
class Shard(Generic[T]):
    """Marks an argument whose tensors are cut along their dimension `dim` rather than along that of
    the others. The module is called with the piece, not with this mark."""

    value: T
    dim: int


def scatter(inputs: Any, target_gpus: Sequence[Place], dim: int = 0) -> Any:
    """Cuts each tensor within `inputs` along `dim`, for the places `target_gpus`: a structure like
    `inputs` for each place that gets a piece (5 rows over 4 places are 2, 2 and 1), as a tuple for
    a single tensor and as a list otherwise.

    Raises `ValueError`, naming both, if two tensors have not the same length along `dim`, or if one
    has no such dimension.
    """
    parts = _split(inputs, target_gpus, dim, "inputs")
    return tuple(parts) if isinstance(inputs, torch.Tensor) else parts


def scatter_kwargs(
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    target_gpus: Sequence[Place],
    dim: int = 0,
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """`scatter` for the arguments of a call: positional and named ones, as many of one as of the
    other. Without any tensor among them each place gets them all."""
    if not kwargs and len(inputs) == 1 and isinstance(inputs[0], torch.Tensor):
        # The usual call, without detours.
        pieces = _chunks(inputs[0], target_gpus, dim) or _split(
            inputs[0], target_gpus, dim, "args[0]"
        )
        return tuple((piece,) for piece in pieces), tuple({} for _ in pieces)
    parts = _split((inputs, dict(kwargs or {})), target_gpus, dim, "")
    if not inputs and not kwargs:
        return (), ()
    return tuple(tuple(part[0]) for part in parts), tuple(part[1] for part in parts)


def gather(outputs: Sequence[Any], target_device: Place, dim: int = 0) -> Any:
    """Joins structures of one form, one from each place, into one on `target_device`: tensors along
    `dim` (those without dimensions become a vector, with a warning); None stays None.

    Anything else must be the same in all (`TypeError`), as must the keys of a mapping and the
    length of a sequence (`ValueError`).
    """
    return _join(list(outputs), target_device, dim, "output")


def _split(inputs: Any, places: Sequence[Place], dim: int, path: str) -> list[Any]:
    devices = devices_of(places)
    return _pieces(inputs, devices[: _count_pieces(inputs, len(devices), dim, path)], dim)


def _chunks(tensor: torch.Tensor, places: Sequence[Place], dim: int) -> Sequence[Any]:
    """Returns what `_split` makes of a tensor of the CPU that is cut for places there, if that is
    plain."""
    if (
        not tensor.is_cpu
        or tensor.requires_grad
        or not all(place is HOST for place in places)
        or not -tensor.dim() <= dim < tensor.dim()
        or not tensor.shape[dim]
    ):
        return ()
    pieces = tensor.chunk(len(places), dim)
    return pieces if len(pieces) > 1 else (tensor,)


def _count_pieces(inputs: Any, limit: int, dim: int, path: str) -> int:
    """Returns how many places get a piece."""
    first: tuple[str, int] | None = None
    for where, tensor, axis in cut_tensors(inputs, dim, path):
        if not -tensor.dim() <= axis < tensor.dim():
            raise ValueError(
                f"{where} has shape {tuple(tensor.shape)} and no dimension {axis} to cut; "
                "give it as Replicate(…) if every slot is to have all of it"
            )
        size = tensor.shape[axis]
        if first is None:
            first = (where, size)
        elif first[1] != size:
            raise ValueError(
                f"{first[0]} has {first[1]} elements along the dimension to cut, but {where} has "
                f"{size}; mark what is not part of the batch with Replicate(…), and what has the "
                "batch elsewhere with Shard(…, dim)"
            )
    if first is None or first[1] == 0:
        return limit
    step = -(-first[1] // limit)
    return -(-first[1] // step)


def cut_tensors(thing: Any, dim: int, path: str) -> Iterator[tuple[str, torch.Tensor, int]]:
    """Each tensor that will be cut, with its path and dimension."""
    if isinstance(thing, torch.Tensor):
        yield path, thing, dim
    elif isinstance(thing, Shard):
        yield from cut_tensors(thing.value, thing.dim, path)
    elif not isinstance(thing, Replicate) and (unpacked := unpack_container(thing)) is not None:
        for key, child in zip(unpacked.keys, unpacked.children, strict=True):
            # What `scatter_kwargs` makes of a call is named as the program names it.
            name = {"[0]": "args", "[1]": "kwargs"}[key] if not path else path + key
            yield from cut_tensors(child, dim, name)


def _pieces(thing: Any, devices: Sequence[torch.device], dim: int) -> list[Any]:
    """`thing` for each device."""
    if isinstance(thing, torch.Tensor):
        if [thing.device] == devices:
            return [thing]
        if thing.is_cpu and not thing.requires_grad and all(map(is_host, devices)):
            return list(thing.chunk(len(devices), dim))
        return list(Scatter.apply(devices, None, dim, thing))
    if isinstance(thing, Shard):
        return _pieces(thing.value, devices, thing.dim)
    if isinstance(thing, Replicate):
        return _copies(thing.value, devices)
    return _for_each_device(thing, devices, lambda child: _pieces(child, devices, dim))


def _copies(thing: Any, devices: Sequence[torch.device]) -> list[Any]:
    """All of `thing` for each device."""
    if isinstance(thing, torch.Tensor):
        return list(Broadcast.apply(devices, thing))
    return _for_each_device(thing, devices, lambda child: _copies(child, devices))


def _for_each_device(thing: Any, devices: Sequence[torch.device], distribute: Any) -> list[Any]:
    unpacked = unpack_container(thing)
    if unpacked is None:
        return [thing] * len(devices)
    columns = [distribute(child) for child in unpacked.children]
    if not isinstance(thing, (list, dict)) and all(
        value is child
        for column, child in zip(columns, unpacked.children, strict=True)
        for value in column
    ):
        return [thing] * len(devices)  # nothing within was cut: an object keeps its identity
    return [unpacked.rebuild([column[i] for column in columns]) for i in range(len(devices))]


def _join(outputs: list[Any], device: Place, dim: int, path: str) -> Any:
    out = outputs[0]
    if isinstance(out, torch.Tensor):
        if _are_on_host(outputs, device):
            return torch.cat(outputs, dim)  # what Gather does there, in fewer steps
        return Gather.apply(device, dim, *outputs)
    if isinstance(out, Mapping):
        return _join_mappings(outputs, device, dim, path)
    unpacked = unpack_container(out)
    if unpacked is None:
        return _same_in_all(outputs, device, dim, path)
    columns = [unpacked.children]
    for i, other in enumerate(outputs[1:], start=1):
        columns.append(getattr(unpack_container(other), "children", ()))
        if not _are_of_one_type(out, other) or len(columns[-1]) != len(unpacked.keys):
            raise ValueError(
                f"{path} is a {type(out).__name__} of {len(unpacked.keys)} in slot 0 and a "
                f"{type(other).__name__} of {len(columns[-1])} in slot {i}: they cannot be gathered"
            )
    return unpacked.rebuild(
        [
            _join(list(column), device, dim, path + key)
            for key, *column in zip(unpacked.keys, *columns, strict=True)
        ]
    )


def _are_of_one_type(one: Any, other: Any) -> bool:
    """Returns whether all are of one class, by its name: a class made within a function comes from
    another process as a copy."""
    a, b = type(one), type(other)
    return a is b or (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__)


def _are_on_host(outputs: list[Any], device: Place) -> bool:
    """Returns whether these are tensors of the CPU, with dimensions, to be joined there."""
    return is_host(device_of(device)) and all(
        isinstance(each, torch.Tensor) and each.is_cpu and each.dim() for each in outputs
    )


def _join_mappings(outputs: list[Any], device: Place, dim: int, path: str) -> Any:
    """Joins mappings by their keys, which need not be in one order."""
    out = outputs[0]
    if not all(len(out) == len(other) for other in outputs):
        raise ValueError(f"All dicts must have the same number of keys: {path}")
    for i, other in enumerate(outputs[1:], start=1):
        if missing := [key for key in out if key not in other]:
            raise ValueError(f"{path} has the keys {missing} in slot 0 but not in slot {i}")
    values = [
        _join([other[key] for other in outputs], device, dim, f"{path}[{key!r}]") for key in out
    ]
    unpacked = unpack_container(out)
    return out if unpacked is None else unpacked.rebuild(values)


def _same_in_all(outputs: list[Any], device: Place, dim: int, path: str) -> Any:
    """Returns what all have in common, if it is no tensor and no container that we know."""
    out = outputs[0]
    if all(other is out for other in outputs):
        return out
    if isinstance(out, COMPARABLE):
        if all(type(other) is type(out) and other == out for other in outputs):
            return out
    elif isinstance(out, Iterable):
        kind: Any = type(out)
        return kind(_join(list(row), device, dim, path) for row in zip(*outputs, strict=True))
    raise TypeError(
        f"{path} is {out!r} in slot 0 and {next(o for o in outputs if o is not out)!r} in another: "
        f"values of type {type(out).__name__} cannot be gathered unless they are the same in all; "
        "return tensors, or register the type with torch.utils._pytree"
    )
