"""How the fields of each message class are written and read.

The fields of a message are plain values, so `marshal` reads and writes them in one C call; ids
travel as tuples and become ids again by the annotations of the message class. A payload adds its
encoding, its stream and the headers of its items.
"""

from __future__ import annotations

import marshal
import sys
import types
import typing
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.link.checking import check_of
from lockstitch.modes import are_plain
from lockstitch.wire.messages import Message, Payload, Stitch
from lockstitch.wire.tensor_receiver import finish, take_small
from lockstitch.wire.tensors import DTYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_IDS: Final = (GlobalId, WorkerId)
_new_tuple: Final = tuple.__new__  # half of what it costs to call the class of a named tuple

L = TypeVar("L", bound="Layout")


def _plain(value: Any) -> Any:
    """Tuples of ids, and ids, as exact tuples, which marshal demands."""
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _plainer(annotation: Any) -> Callable[[Any], Any]:
    """`_plain` for values of the annotated type: the short way for ids, and tuples of them."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _IDS:
        return tuple
    if origin is tuple and {*arguments} <= {*_IDS, Ellipsis}:
        return lambda ids: tuple(map(tuple, ids))
    if origin is tuple and arguments[-1] is Ellipsis:
        plain = _plainer(arguments[0])
        return lambda values: tuple(map(plain, values))
    return _plain


def _restorer(annotation: Any) -> Callable[[Any], Any] | None:
    """Returns what turns a plain value back into a value of the annotated type; None where it is
    one."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _IDS:
        return annotation._make  # type: ignore[no-any-return]
    if annotation is Stitch:
        return _restore_stitch
    if origin in (typing.Union, types.UnionType):
        inner = [_restorer(argument) for argument in arguments if argument is not type(None)]
        restore = next((each for each in inner if each is not None), None)
        return None if restore is None else lambda value: None if value is None else restore(value)
    if origin is tuple and arguments:
        if arguments[-1] is Ellipsis:
            each = _restorer(arguments[0])
            return None if each is None else lambda value: tuple(map(each, value))
        parts = [_restorer(argument) for argument in arguments]
        if any(parts):
            return lambda value: tuple(
                [
                    entry if part is None else part(entry)
                    for part, entry in zip(parts, value, strict=True)
                ]
            )
    return None


def _restore_stitch(value: tuple[Any, ...]) -> Stitch:
    context, message, tensors, workers = value
    if type(tensors) is not tuple:
        raise TypeError("the tensors of a stitch are no tuple")
    return Stitch(
        context,
        None if message is None else GlobalId._make(message),
        tensors,
        tuple(map(WorkerId._make, workers)),
    )


def _getter(names: Sequence[str]) -> Callable[[Message], tuple[Any, ...]]:
    if not names:
        return lambda _message: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda message: (get(message),)


class Layout:
    """How the fields of one message class are written and read."""

    def __init__(self, cls: type[Message]) -> None:
        self.cls = cls
        self.kind = cls.KIND
        hints = typing.get_type_hints(cls, vars(sys.modules[cls.__module__]))
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        self.has_body = names[-1:] == ["body"]
        plain_names = names[:-1] if self.has_body else names
        self.stitch = plain_names.index("stitch") if "stitch" in plain_names else None
        self.count = len(plain_names)
        self._get = _getter(plain_names)
        self._checks = [check_of(hints[name]) for name in plain_names]
        self._restorers = [
            (place, restore)
            for place, name in enumerate(plain_names)
            if (restore := _restorer(hints[name])) is not None
        ]
        self._plainers = [
            (place, _plainer(hints[plain_names[place]])) for place, _ in self._restorers
        ]
        self._flat = not self._restorers or (self.stitch is not None and len(self._restorers) == 1)
        self.width = self.count + 3 * self.has_body
        """How many values a frame of this class holds."""

    def values(self, message: Message) -> tuple[Any, ...]:
        """The fields of a message as exact tuples, numbers and texts, with the three of a payload
        in its place."""
        values = self._get(message)
        if self.has_body:
            values += message.body  # type: ignore[attr-defined]
        if self._flat and (self.stitch is None or values[self.stitch] is None):
            return values
        plain = list(values)
        for place, make_plain in self._plainers:
            if plain[place]:
                plain[place] = make_plain(plain[place])
        return tuple(plain)

    def restore(self, values: list[Any]) -> None:
        """Makes ids of the tuples among `values` that stand for them."""
        try:
            for place, restore in self._restorers:
                if values[place] != () and values[place] is not None:
                    values[place] = restore(values[place])
        except (TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"a field of a {self.cls.__name__} has a wrong form"
            ) from error

    def load(self, inline: memoryview) -> tuple[Any, ...]:
        """The values of a frame."""
        try:
            loaded = marshal.loads(inline)
        except (ValueError, EOFError, TypeError, MemoryError) as error:
            raise RemoteProtocolError(
                f"the fields of a {self.cls.__name__} are not readable"
            ) from error
        if type(loaded) is not tuple or len(loaded) != self.width:
            raise RemoteProtocolError(
                f"a {self.cls.__name__} has not the fields that it should have"
            )
        return loaded

    def read(
        self, loaded: tuple[Any, ...], address: int, small: int, most_items: int
    ) -> Message | None:
        """The message of a frame with these values whose items, if any, are small and plain tensors
        (`small` bytes at `address`); None for others. (`IncomingFrame` reads any frame; this is the
        short way for most.)"""
        fields: Any
        if not self.has_body:
            fields = list(loaded)
            self.restore(fields)
            return self.cls(*fields) if not small else None
        fields, body = loaded[:-3], loaded[-3:]
        if not self._flat or (self.stitch is not None and fields[self.stitch] is not None):
            fields = list(fields)
            self.restore(fields)
        encoding, stream, headers = body
        if type(stream) is not bytes or type(headers) is not tuple:
            return None
        if not headers and not small:
            return self.cls(*fields, _new_tuple(Payload, body))  # type: ignore[call-arg]
        if len(headers) > most_items or not are_plain():
            return None
        items = take_small(headers, address, small)
        if items is None:
            return None
        stitch = None if self.stitch is None else fields[self.stitch]
        for index, header in enumerate(headers):
            if header[0] > DTYPE_BITS:
                as_leaf = stitch is None or index not in stitch.tensors
                items[index] = finish(header, items[index], as_leaf=as_leaf)
        return self.cls(*fields, _new_tuple(Payload, (encoding, stream, items)))  # type: ignore[call-arg]


class StrictLayout(Layout):
    """Refuses fields of other types than their annotations say (see `checking`)."""

    def load(self, inline: memoryview) -> tuple[Any, ...]:
        loaded = super().load(inline)
        for check, value in zip(self._checks, loaded, strict=False):  # without a payload's three
            if not check(value):
                raise RemoteProtocolError(f"a field of a {self.cls.__name__} has a wrong type")
        if self.has_body and type(loaded[-3]) is not int:
            raise RemoteProtocolError(f"the encoding of a {self.cls.__name__} is no number")
        return loaded


class _Layouts(dict[type[Message], L]):
    """The layout of each message class, worked out on first use."""

    def __init__(self, make: Callable[[type[Message]], L]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, cls: type[Message]) -> L:
        layout = self[cls] = self._make(cls)
        return layout


layout_of: Final[Callable[[type[Message]], Layout]] = _Layouts(Layout).__getitem__
"""The layout of a message class."""

strict_layout_of: Final[Callable[[type[Message]], StrictLayout]] = _Layouts(
    StrictLayout
).__getitem__
"""Likewise, for frames of somebody who is not trusted with code."""
