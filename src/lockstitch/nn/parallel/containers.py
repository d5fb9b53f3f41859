"""What a container holds, and one like it with other things inside.

Tuples, named tuples, lists, mappings that can be changed, dataclasses, their subclasses, and what
is registered with torch's pytree (`register_pytree_node`,
`torch.export.register_dataclass`): the door for types of one's own.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch

from lockstitch.torch_internals.modules import CONTAINERS

PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.Size})


class Unpacked(NamedTuple):
    """The parts of a container."""

    keys: Sequence[str]
    """How a program would write each child after the container's name: `[0]`, `.logits`."""
    children: Sequence[Any]
    rebuild: Callable[[Sequence[Any]], Any]
    """A container of the same type with these children."""


def unpack_container(thing: Any) -> Unpacked | None:
    """Takes a container apart; returns None for what is no container, and for an empty one."""
    kind = type(thing)
    if kind in PLAIN:
        return None
    if isinstance(thing, MutableMapping):
        return _unpack_mapping(thing)
    if kind in CONTAINERS and kind not in (tuple, list):
        return _unpack_registered(thing)
    if isinstance(thing, (tuple, list)):
        return _unpack_sequence(thing)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return _unpack_dataclass(thing)
    return None


def tensors_within(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in tuples, lists and dicts, however deep; what is marked for all places
    alike (`Replicate`, `Shard`) is none of these."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_within(each)


def _unpack_sequence(things: tuple[Any, ...] | list[Any]) -> Unpacked | None:
    kind: Any = type(things)
    if hasattr(things, "_fields") and hasattr(things, "_make"):
        return _if_filled([f".{name}" for name in things._fields], things, kind._make)
    if kind in (tuple, list) or isinstance(things, tuple):
        return _if_filled(_indices(things), things, kind)
    return _if_filled(_indices(things), things, lambda values: _list_like(things, values))


def _if_filled(
    keys: Sequence[str], children: Sequence[Any], rebuild: Callable[[Sequence[Any]], Any]
) -> Unpacked | None:
    return Unpacked(keys, children, rebuild) if len(children) else None


def _indices(things: Sequence[Any]) -> list[str]:
    return [f"[{i}]" for i in range(len(things))]


def _list_like(original: list[Any], values: Sequence[Any]) -> list[Any]:
    """A copy of a list's subclass, which may carry attributes, with other items."""
    new = copy.copy(original)
    new[:] = values
    return new


def _unpack_mapping(mapping: MutableMapping[Any, Any]) -> Unpacked | None:
    keys = list(mapping)

    def rebuild(values: Sequence[Any]) -> Any:
        if type(mapping) is dict:
            return dict(zip(keys, values, strict=True))
        new = copy.copy(mapping)  # a subclass keeps its attributes: a factory, an order
        for key, value in zip(keys, values, strict=True):
            new[key] = value
        return new

    return _if_filled([f"[{key!r}]" for key in keys], list(mapping.values()), rebuild)


def _unpack_registered(thing: Any) -> Unpacked | None:
    node = CONTAINERS[type(thing)]
    children, context = node.flatten_fn(thing)
    names = [f"[{i}]" for i in range(len(children))]
    if node.flatten_with_keys_fn is not None:
        keyed, context = node.flatten_with_keys_fn(thing)
        names = [str(key) for key, _ in keyed]
    return _if_filled(names, children, lambda values: node.unflatten_fn(list(values), context))


def _unpack_dataclass(thing: Any) -> Unpacked | None:
    """A copy is made without the constructor: it may have required what no field keeps."""
    fields = [field.name for field in dataclasses.fields(thing) if hasattr(thing, field.name)]

    def rebuild(values: Sequence[Any]) -> Any:
        new = copy.copy(thing)
        for name, value in zip(fields, values, strict=True):
            object.__setattr__(new, name, value)  # the way into a frozen one
        return new

    names = [f".{name}" for name in fields]
    return _if_filled(names, [getattr(thing, name) for name in fields], rebuild)
