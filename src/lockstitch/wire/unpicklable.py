"""Which part of a value is it that cannot cross the wire? Asked only once pickling has failed.

The parts of the value are pickled one by one, then those of the first that fails, and so on. What
is pickled here goes nowhere: instances of registered types count as what can be sent, and nothing
is noted about them.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.wire.encodings import PicklingRegistry, Records
from lockstitch.wire.pickling import can_pack, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DEEPEST: Final = 16
_OWN_WAYS: Final = ("__getstate__", "__reduce__", "__reduce_ex__")


def describe_unpicklable(
    parts: Sequence[tuple[str, object]],
    registry: PicklingRegistry,
    *,
    records: Records | None = None,
) -> str:
    """Returns what part of a value cannot be sent: how it is reached and what it is, such as
    `args[1].model.lock is <unlocked _thread.lock object>`; "" where each part alone could be.

    `parts`: those of the value as a whole, each with what a path to it begins with; `records`: see
    `PickleSession`.
    """
    harmless = _without_effects(registry)
    path, seen = "", list[object]()
    within: Iterable[tuple[str, object]] = parts
    while len(seen) < _DEEPEST:
        for step, part in within:
            if all(part is not each for each in seen) and not can_pack(
                part, harmless, records=records
            ):
                path += step
                seen.append(part)
                within = _parts_of(part)
                break
        else:
            break
    return f"{path} is {shorten(seen[-1])}" if seen else ""


def _without_effects(registry: PicklingRegistry) -> PicklingRegistry:
    """A registry that knows the same types, and sends nothing of them."""
    harmless = PicklingRegistry()
    harmless.allowed = registry.allowed
    for cls, (tag, _) in registry.reducers.items():
        harmless.reducers[cls] = (tag, lambda _value, _session: ())
    return harmless


def _parts_of(value: object) -> Iterator[tuple[str, object]]:
    """Returns what is pickled with `value`, and how it is reached from there."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items()))
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{place}]", part) for place, part in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", part) for name, part in value.keywords.items())
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif not any(_has_own(type(value), way) for way in _OWN_WAYS):
        yield from ((f".{name}", part) for name, part in _state_of(value).items())


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Variables of the surrounding function, and those of the module that its code names."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            yield f"'s variable {name}", cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"'s global {name}", function.__globals__[name]


def _has_own(cls: type, way: str) -> bool:
    usual = (getattr(each, way, None) for each in (object, torch.nn.Module))
    return getattr(cls, way, None) not in usual


def _state_of(value: object) -> dict[str, Any]:
    return getattr(value, "__dict__", {})
