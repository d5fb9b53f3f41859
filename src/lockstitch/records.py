"""Small values that are made all the time: dataclasses which only the type checker keeps frozen.

A dataclass that is frozen at run time sets each of its fields by a call, and costs two to four
times as much to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options: object) -> Callable[[object], object]:
        """For type checkers only."""
        return lambda decorator: decorator


__all__ = ["dataclass_transform", "record"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Makes `cls` a dataclass with slots, compared and hashed by its fields. A type checker refuses
    to set them."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
