"""One result made of those of many workers, in the order of their ranks: the same each time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.ids import WorkerInfo

Operation = Callable[[Any, Any], Any]


def _greater(one: Any, other: Any) -> Any:
    return torch.maximum(one, other) if isinstance(one, torch.Tensor) else max(one, other)


def _smaller(one: Any, other: Any) -> Any:
    return torch.minimum(one, other) if isinstance(one, torch.Tensor) else min(one, other)


NAMED: Final[dict[str, Operation]] = {
    "sum": operator.add,
    "mean": operator.add,
    "product": operator.mul,
    "max": _greater,
    "min": _smaller,
}


def operation_of(op: str | Operation) -> Operation:
    """What joins two results. Raises `ValueError` for a name that is none of `NAMED`."""
    if callable(op):
        return op
    if op not in NAMED:
        raise ValueError(f"op is one of {', '.join(map(repr, NAMED))}, or a function, not {op!r}")
    return NAMED[op]


def reduce(results: Sequence[Any], op: str | Operation, workers: Sequence[WorkerInfo]) -> Any:
    """Joins the results by `op`. Named operations are applied to numbers and tensors, and to those
    in dictionaries, lists and tuples of the same form.

    Raises `ValueError` where two results differ in form, with the names of their workers.
    """
    join = operation_of(op)
    if callable(op):
        return functools.reduce(join, results)
    names = [worker.name for worker in workers]
    joined = results[0]
    for name, result in zip(names[1:], results[1:], strict=True):
        joined = _join(join, joined, result, (names[0], name))
    return _divided(joined, len(results)) if op == "mean" else joined


def _join(join: Operation, one: Any, other: Any, names: tuple[str, str]) -> Any:
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return {key: _join(join, one[key], other[key], names) for key in one}
    if isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        return _like(one, [_join(join, *pair, names) for pair in zip(one, other, strict=True)])
    if any(isinstance(each, (Mapping, list, tuple)) for each in (one, other)) or (
        _shape(one) != _shape(other)
    ):
        raise ValueError(
            f"the results of workers {names[0]!r} and {names[1]!r} differ in form: {_form(one)} "
            f"and {_form(other)}"
        )
    return join(one, other)


def _divided(value: Any, count: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _divided(each, count) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return _like(value, [_divided(each, count) for each in value])
    return value / count


def _like(sequence: Any, values: list[Any]) -> Any:
    """The values as a list or tuple of the same type as `sequence`."""
    is_named = hasattr(sequence, "_fields")
    return type(sequence)(*values) if is_named else type(sequence)(values)


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, torch.Tensor) else None


def _form(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with keys {list(value)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
