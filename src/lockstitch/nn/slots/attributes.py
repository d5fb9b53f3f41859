"""What a replica's attributes refer to: parts of the replica where the module's refer to parts of
the module.

Lists and tables are copied. So are methods, closures and objects of a program's own classes that
hold parts of the tree, however they come by them; all other values are shared.
"""

from __future__ import annotations

import copy
import types
from functools import partial
from typing import Any, Final

import torch
from torch import nn

# Objects within objects are looked into so far.
_DEEPEST: Final = 3
_WAYS_OF_COPYING: Final = ("__reduce__", "__reduce_ex__", "__copy__")


def refer(value: Any, copy_of: dict[int, Any], depth: int = 0) -> Any:
    """`value`, referring to the replica's parts instead of the module's: `copy_of` has the copy for
    the `id` of each part, and is told of what is copied here."""
    if id(value) in copy_of:
        return copy_of[id(value)]
    kind = type(value)
    if kind in (list, tuple, set):
        return kind([refer(each, copy_of, depth) for each in value])
    if isinstance(value, dict):
        new = value.copy()
        for key, each in value.items():
            new[key] = refer(each, copy_of, depth)
        return new
    if kind in (types.MethodType, types.FunctionType, partial):
        return _refer_within_callable(value, copy_of, depth)
    if _is_plain_object(value) and depth < _DEEPEST:
        return _refer_within_object(value, copy_of, depth)
    return value


def _refer_within_callable(value: Any, copy_of: dict[int, Any], depth: int) -> Any:
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, refer(value.__self__, copy_of, depth))
    if isinstance(value, partial):
        args = [refer(each, copy_of, depth) for each in value.args]
        function = refer(value.func, copy_of, depth)
        return partial(function, *args, **refer(value.keywords, copy_of, depth))
    return _refer_within_function(value, copy_of, depth)


def _is_plain_object(value: Any) -> bool:
    """An instance of a program's own class, whose attributes are all that there is to it."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and all(getattr(kind, way, None) is getattr(object, way, None) for way in _WAYS_OF_COPYING)
        and not isinstance(value, (type, types.ModuleType, nn.Module, torch.Tensor))
        and kind.__module__.partition(".")[0] not in ("torch", "builtins")
        and not hasattr(kind, "__slots__")
    )


def _refer_within_object(value: Any, copy_of: dict[int, Any], depth: int) -> Any:
    """An object that holds parts of the tree, copied; any other one is shared."""
    copy_of[id(value)] = value  # for an object that refers to itself
    attributes = {name: refer(each, copy_of, depth + 1) for name, each in vars(value).items()}
    if not any(_has_changed(each, value.__dict__[name]) for name, each in attributes.items()):
        return value
    new = copy_of[id(value)] = copy.copy(value)
    new.__dict__.update(attributes)
    return new


def _refer_within_function(function: Any, copy_of: dict[int, Any], depth: int) -> Any:
    """A function that has closed over parts of the tree, copied; any other one is shared."""
    if not function.__closure__ or depth >= _DEEPEST:
        return function
    copy_of[id(function)] = function
    old = [cell.cell_contents for cell in function.__closure__ if not _is_empty(cell)]
    if len(old) < len(function.__closure__):
        return function
    new = [refer(each, copy_of, depth + 1) for each in old]
    if not any(map(_has_changed, new, old)):
        return function
    copied = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(map(types.CellType, new)),
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__dict__.update(function.__dict__)
    copy_of[id(function)] = copied
    return copied


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked for its error
    except ValueError:
        return True
    return False


def _has_changed(new: Any, old: Any) -> bool:
    """Whether `refer` made something else of `old`; a copied container of the same does not
    count."""
    if new is old:
        return False
    if type(old) in (list, tuple) and len(old) == len(new):
        return any(map(_has_changed, new, old))
    if isinstance(old, dict) and isinstance(new, dict):
        return any(_has_changed(new[key], each) for key, each in old.items())
    return not (type(old) is set and new == old)
