"""Checked records: dataclasses as JSON, and back, whoever may have written it.

A field holds what its annotation says and nothing else: `None`, truth values, numbers, texts,
enumerations (by value), literals, tuples and other dataclasses (as lists), and unions of these. The
annotations are looked at once, when the codec is made. Nothing is guessed or converted: a number is
no text, and `true` no number. A tuple of ids, as in the messages of workers, goes another way
(`wire.layouts`). No I/O here.
"""

from __future__ import annotations

import contextlib
import enum
import json
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockstitch.errors import RemoteProtocolError
from lockstitch.link.checking import check_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lockstitch.errors import ProtocolError

    Read = Callable[[Any], Any]
    """Makes a value of what JSON gives; raises `ValueError` where it is none."""

T = TypeVar("T")

_NONSENSE = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError)


class Codec(Generic[T]):
    """Writes and reads records of one class, or of several, which are then told apart by name.

    A record is the list of its fields. `by_name`: a mapping instead, for what other versions may
    read: they leave out what they do not know, and take the default of what is not there. So what
    has its default is not written. What is refused raises `error`, with `complaint` and the reason.
    """

    def __init__(
        self,
        *classes: type[T],
        complaint: str,
        error: type[ProtocolError] = RemoteProtocolError,
        by_name: bool = False,
    ) -> None:
        self._forms = {cls.__name__: _Fields(cls) for cls in classes}
        self._only = self._forms[classes[0].__name__] if len(classes) == 1 else None
        self._complaint = complaint
        self._error = error
        self._by_name = by_name

    def encode(self, record: T) -> bytes:
        """Returns the record as JSON, in ASCII; equal records give equal bytes."""
        plain: Any
        if self._only is None:
            name = type(record).__name__
            plain = [name, *self._forms[name].values(record)]
        elif self._by_name:
            plain = self._only.by_name(record)
        else:
            plain = self._only.values(record)
        return _to_json(plain).encode()

    def decode(self, content: bytes | bytearray) -> T:
        """Returns the record that `encode` has written."""
        try:
            return self._read(json.loads(content))
        except _NONSENSE as error:
            shown = bytes(content[:200])
            raise self._error(f"{self._complaint}: {shown!r} ({error})") from error

    def _read(self, plain: Any) -> T:
        if self._by_name and self._only is not None:
            if type(plain) is not dict:
                raise ValueError("it is no mapping")
            return self._only.of_names(plain)
        if type(plain) is not list:
            raise ValueError("it is no list")
        if self._only is not None:
            return self._only.of_list(plain)
        name, *values = plain
        if type(name) is not str or name not in self._forms:
            raise ValueError(f"there is no {name!r}")
        return self._forms[name].of_list(values)


class _Fields(Generic[T]):
    """The fields of one dataclass."""

    def __init__(self, cls: type[T]) -> None:
        self._cls = cls
        self._fields = fields(cls)  # type: ignore[arg-type]
        self.names = [field.name for field in self._fields]
        hints = typing.get_type_hints(cls)
        self._readers = [_reader_of(hints[name]) for name in self.names]

    def values(self, record: T) -> list[Any]:
        return [getattr(record, name) for name in self.names]

    def by_name(self, record: T) -> dict[str, Any]:
        named = {field.name: (getattr(record, field.name), field.default) for field in self._fields}
        return {name: value for name, (value, default) in named.items() if value != default}

    def of_list(self, values: Sequence[Any]) -> T:
        if type(values) is not list or len(values) != len(self._readers):
            raise ValueError(f"a {self._cls.__name__} has {len(self._readers)} fields")
        try:
            return self._cls(
                *[read(each) for read, each in zip(self._readers, values, strict=True)]
            )
        except ValueError:
            # Once more, to find out which.
            return self._cls(*map(self._value, range(len(values)), values))

    def of_names(self, values: Mapping[str, Any]) -> T:
        found = {}
        for place, field in enumerate(self._fields):
            if field.name in values:
                found[field.name] = self._value(place, values[field.name])
            elif field.default is MISSING:
                raise ValueError(f"a {self._cls.__name__} has a {field.name!r}")
        return self._cls(**found)

    def _value(self, place: int, value: Any) -> Any:
        try:
            return self._readers[place](value)
        except ValueError as error:
            field = self._fields[place]
            why = f"{field.name!r} of a {self._cls.__name__} is no {field.type}"
            raise ValueError(why) from error


def _plain(value: Any) -> Any:
    """Returns what JSON writes instead of a value that it does not know."""
    if isinstance(value, enum.Enum):
        return value.value
    return [getattr(value, field.name) for field in fields(value)]


_to_json = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def _reader_of(annotation: Any) -> Read:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        others = [each for each in arguments if each is not type(None)]
        return _reader_of_union([*map(_reader_of, others)], len(others) < len(arguments))
    if origin is tuple:
        return _reader_of_tuple(arguments)
    if origin is typing.Literal:
        return _checked(lambda value: type(value) is str and value in arguments)
    if is_dataclass(annotation):
        return _Fields(annotation).of_list  # type: ignore[arg-type]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation
    return _checked(check_of(annotation))


def _checked(check: Callable[[Any], bool]) -> Read:
    def read(value: Any) -> Any:
        if not check(value):
            raise ValueError(value)
        return value

    return read


def _reader_of_union(readers: Sequence[Read], may_be_none: bool) -> Read:
    def read(value: Any) -> Any:
        if value is None and may_be_none:
            return None
        for each in readers[:-1]:
            with contextlib.suppress(ValueError):
                return each(value)
        return readers[-1](value)

    return read


def _reader_of_tuple(parts: tuple[Any, ...]) -> Read:
    if len(parts) == 2 and parts[1] is Ellipsis:
        return _reader_of_many(parts[0])
    readers = [_reader_of(each) for each in parts]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise ValueError(value)
        return tuple([each(entry) for each, entry in zip(readers, value, strict=True)])

    return read


def _reader_of_many(annotation: Any) -> Read:
    if annotation in (int, str):  # shapes, ranks, names: in one go
        check = check_of(annotation)
        checked = _checked(lambda value: type(value) is list and all(map(check, value)))
        return lambda value: tuple(checked(value))
    each = _reader_of(annotation)

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise ValueError(value)
        return tuple(map(each, value))

    return read
