"""Tensors lifted out of a structure, and put back.

A slot gets the arguments of its call as a skeleton, in which holes stand for the tensors, and the
tensors beside it: so each kind of slot can bring tensors over in its own way, and autograd sees
them. What counts as a container is the same as for `scatter` (`parallel/containers.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from lockstitch.nn.parallel.containers import unpack_container

if TYPE_CHECKING:
    from collections.abc import Sequence


class Hole(NamedTuple):
    """Marks the place where the tensor of this number was."""

    number: int


SINGLE: Final = Hole(0)
"""The skeleton of a tensor."""
SINGLE_ARGUMENT: Final = (SINGLE,), {}  # type: ignore[var-annotated]
"""That of positional and named arguments where a tensor is all."""


def is_single_argument(skeleton: Any) -> bool:
    """Whether it is like `SINGLE_ARGUMENT`. (What programs put into a skeleton must not be
    compared.)"""
    args, kwargs = skeleton
    return len(args) == 1 and type(args[0]) is Hole and not kwargs


def lift(value: Any) -> tuple[Any, list[torch.Tensor]]:
    """`value` with a `Hole` for each tensor, and the tensors; one that is there twice is listed
    once."""
    tensors: list[torch.Tensor] = []
    numbers: dict[int, int] = {}
    return _lift(value, tensors, numbers), tensors


def _lift(value: Any, tensors: list[torch.Tensor], numbers: dict[int, int]) -> Any:
    if isinstance(value, torch.Tensor):
        number = numbers.setdefault(id(value), len(tensors))
        if number == len(tensors):
            tensors.append(value)
        return Hole(number)
    kind = type(value)
    if kind is tuple:
        return tuple([_lift(each, tensors, numbers) for each in value])
    if kind is dict:
        return {key: _lift(each, tensors, numbers) for key, each in value.items()}
    unpacked = unpack_container(value)
    if unpacked is None:
        return value
    before = len(tensors), len(numbers)
    children = [_lift(child, tensors, numbers) for child in unpacked.children]
    if before == (len(tensors), len(numbers)) and all(
        new is old for new, old in zip(children, unpacked.children, strict=True)
    ):
        return value  # nothing within: an object keeps its identity
    return unpacked.rebuild(children)


def fill(skeleton: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The structure again, with these tensors in the holes."""
    kind = type(skeleton)
    if kind is Hole:
        return tensors[skeleton.number]
    if kind is tuple:
        return tuple([fill(each, tensors) for each in skeleton])
    if kind is dict:
        return {key: fill(each, tensors) for key, each in skeleton.items()}
    unpacked = unpack_container(skeleton)
    if unpacked is None:
        return skeleton
    children = [fill(child, tensors) for child in unpacked.children]
    if all(new is old for new, old in zip(children, unpacked.children, strict=True)):
        return skeleton
    return unpacked.rebuild(children)
