"""Whether what stands in a message's fields is what its class says: by its annotations.

`marshal` gives back whatever was written. What handlers do with a text where they expect a number
shows late, on another thread, perhaps after it was stored. So where a frame may come from somebody
who is not trusted with code anyway, each field is compared with its annotation first. Ids are still
plain tuples there (see `wire.layouts`).
"""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[Any], bool]

_MOST: Final = 1 << 80  # the number of a context holds a rank, a generation and a counter


def check_of(annotation: Any) -> Check:
    """Returns what says whether a plain value fits an annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        checks = [check_of(each) for each in arguments]
        return lambda value: any(check(value) for check in checks)
    if origin is tuple:
        return _check_of_tuple(arguments)
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        return _check_of_tuple(tuple(typing.get_type_hints(annotation).values()))
    return _PLAIN[annotation]


def _check_of_tuple(parts: tuple[Any, ...]) -> Check:
    if len(parts) == 2 and parts[1] is Ellipsis:
        check = check_of(parts[0])
        return lambda value: type(value) is tuple and all(map(check, value))
    checks = [check_of(each) for each in parts]
    return lambda value: (
        type(value) is tuple
        and len(value) == len(checks)
        and all(check(entry) for check, entry in zip(checks, value, strict=True))
    )


def _is_number(value: Any) -> bool:
    return type(value) is int and -_MOST <= value < _MOST


_PLAIN: Final[dict[Any, Check]] = {
    int: _is_number,
    float: lambda value: type(value) is float or _is_number(value),
    bool: lambda value: type(value) is bool,
    str: lambda value: type(value) is str,
    bytes: lambda value: type(value) is bytes,
    type(None): lambda value: value is None,
}
