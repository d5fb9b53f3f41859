"""`Payload`s → Python values (`wire.encodings`)."""

from __future__ import annotations

import contextlib
import io
import marshal
import pickle
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockstitch.errors import RemoteProtocolError, SerializationError, repr_of
from lockstitch.wire import arrays
from lockstitch.wire.encodings import (
    FLAT_WITH_OWN,
    MARSHAL,
    NOTHING,
    ONE_ITEM,
    ONE_ITEM_TWICE,
    ONE_TENSOR,
    PICKLE,
    TWO_ITEMS,
    PicklingRegistry,
    Rebuild,
    UnpickleSession,
)
from lockstitch.wire.pickling import rebuild, take
from lockstitch.wire.restricted import RestrictedUnpickler
from lockstitch.wire.scanning import check_marshal
from lockstitch.wire.subclasses import rebuild_subclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.trust.registry import Registry
    from lockstitch.wire.encodings import Find
    from lockstitch.wire.messages import Payload

# How the streams of `wire.pickling` name what the unpickler puts something of its own for.
_REBUILD: Final = (rebuild.__module__, rebuild.__qualname__)
_TAKE: Final = (take.__module__, take.__qualname__)
_SUBCLASS: Final = (rebuild_subclass.__module__, rebuild_subclass.__qualname__)

# What goes by marshal is flat: a tuple or list of plain values, and places in tuples.
_MOST_NESTING: Final = 4

# What stands in the stream of a job with a registry for arrays and scalars of NumPy.
_ARRAYS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    (arrays.__name__, each.__name__): each for each in (arrays.array_of, arrays.scalar_of)
}


def unpack(
    payload: Payload, registry: PicklingRegistry, session: UnpickleSession | None = None
) -> Any:
    """Decodes a payload.

    Raises `SerializationError` where it names something that does not exist on this side.
    """
    encoding, stream, items = payload
    if encoding == NOTHING:
        return None
    try:
        if encoding == ONE_TENSOR:
            return items[0]
        if encoding == MARSHAL:
            if registry.allowed is not None:
                check_marshal(stream, _MOST_NESTING)
            return _unpack_flat(stream, items)
        if encoding == FLAT_WITH_OWN:
            if registry.allowed is not None:
                check_marshal(stream, _MOST_NESTING)
            return _unpack_flat_with_own(payload, registry, session or UnpickleSession(None))
    except (StopIteration, IndexError, TypeError, ValueError, EOFError) as error:
        raise RemoteProtocolError(f"a payload does not fit its items: {repr_of(error)}") from error
    if encoding != PICKLE:
        raise RemoteProtocolError(f"unknown encoding {encoding} of a payload")
    return _unpickle(payload, registry, session or UnpickleSession(None))


def _unpickle(payload: Payload, registry: PicklingRegistry, session: UnpickleSession) -> Any:
    _, stream, items = payload
    if registry.allowed is not None:
        rebuild_here = partial(_rebuild, session, registry.rebuilders)
        own: dict[tuple[str, str], Callable[..., Any]] = {
            _REBUILD: rebuild_here,
            _TAKE: take,
            _SUBCLASS: rebuild_subclass,
            **_ARRAYS,
        }
        return RestrictedUnpickler(_open(stream), registry.allowed, own, items).load()
    unpickler = _Unpickler(_open(stream), buffers=items)
    unpickler.prepare(session, registry)
    try:
        return unpickler.load()
    except (ImportError, AttributeError) as error:
        raise missing_here("what was sent cannot be rebuilt here", error) from error


def missing_here(what: str, error: ImportError | AttributeError) -> SerializationError:
    """Returns what to raise where a function or class that a message names may be missing: `what`
    says what happened."""
    return SerializationError(
        f"{what}: {type(error).__name__}: {error}. The RPC pickler does not "
        "serialize the code of functions and classes that a module holds: make sure that the same "
        "module defines them on caller and callee"
    )


def _unpack_flat(stream: bytes | memoryview, items: Sequence[Any]) -> Any:
    if not items:
        return marshal.loads(stream)
    if (stream == ONE_ITEM and len(items) == 1) or (stream == TWO_ITEMS and len(items) == 2):
        return tuple(items)
    if stream == ONE_ITEM_TWICE and len(items) == 1:
        return items[0], items[0]
    value = marshal.loads(stream)
    source = iter(items)
    filled = [
        next(source) if entry is ... else items[entry[0]] if type(entry) is tuple else entry
        for entry in value
    ]
    return filled if type(value) is list else tuple(filled)


def _unpack_flat_with_own(
    payload: Payload, registry: PicklingRegistry, session: UnpickleSession
) -> Any:
    items = payload.items
    value = marshal.loads(payload.stream)
    source = iter(items)
    filled: list[Any] = []
    for entry in value:
        if entry is ...:
            filled.append(next(source))
        elif type(entry) is not tuple:
            filled.append(entry)
        elif type(entry[0]) is str:
            filled.append(_rebuild(session, registry.rebuilders, *entry))
        else:
            filled.append(items[entry[0]])
    return filled if type(value) is list else tuple(filled)


def load_plain(stream: bytes | memoryview, allowed: Registry) -> Any:
    """Reads a pickle in which nothing was extracted, and which may name only what is `allowed`."""
    return RestrictedUnpickler(io.BytesIO(stream), allowed, {}, ()).load()


def discard(
    payload: Payload, registry: PicklingRegistry, session: UnpickleSession | None = None
) -> None:
    """Receives only the registered types of a payload that nobody will read, so that whoever sent
    them learns that they came and went; nothing else in it is imported or made."""
    if payload.encoding == FLAT_WITH_OWN:
        with contextlib.suppress(Exception):  # of what cannot be read, nothing can be given back
            if registry.allowed is not None:
                check_marshal(payload.stream, _MOST_NESTING)
            own_ones = [each for each in marshal.loads(payload.stream) if type(each) is tuple]
            for entry in own_ones:
                if type(entry[0]) is str:
                    _rebuild(session or UnpickleSession(None), registry.rebuilders, *entry)
    elif payload.encoding == PICKLE and b"rebuild" in bytes(payload.stream):
        session = session or UnpickleSession(None)
        unpickler: Any
        if registry.allowed is None:
            unpickler = _Discarder(_open(payload.stream), buffers=payload.items)
            unpickler.prepare(session, registry)
        else:
            own = _Discarded(partial(_rebuild, session, registry.rebuilders))
            unpickler = RestrictedUnpickler(
                _open(payload.stream), registry.allowed, own, payload.items
            )
        with contextlib.suppress(Exception):  # of what cannot be read, nothing can be given back
            unpickler.load()


class _Nothing:
    """Takes the place of every class and function in a payload that is discarded."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> _Nothing:
        return super().__new__(cls)

    def _take(self, *_args: Any) -> None: ...

    __setstate__ = __setitem__ = append = extend = add = update = _take


class _Discarded(dict[tuple[str, str], "Callable[..., Any]"]):
    """Every name means nothing, but that of the registered types."""

    def __init__(self, rebuild_here: Callable[..., Any]) -> None:
        super().__init__({_REBUILD: rebuild_here})

    def __missing__(self, _name: tuple[str, str]) -> Callable[..., Any]:
        return _Nothing

    def get(self, name: tuple[str, str], default: Any = None) -> Any:  # noqa: ARG002
        """Returns a stand-in for every name, never None."""
        return self[name]


class _Unpickler(pickle.Unpickler):
    _rebuild: partial[Any]
    _find: Find

    def prepare(self, session: UnpickleSession, registry: PicklingRegistry) -> None:
        # Not a method: the unpickler's memo keeps it, and would keep the unpickler with all values.
        self._rebuild = partial(_rebuild, session, registry.rebuilders)
        self._find = registry.find

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == _REBUILD:
            return self._rebuild
        return self._find(module, name, super().find_class)


class _Discarder(_Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == _REBUILD:
            return self._rebuild
        return _Nothing


def _rebuild(
    session: UnpickleSession, rebuilders: dict[str, Rebuild], tag: str, *state: object
) -> Any:
    rebuilder = rebuilders.get(tag)
    if rebuilder is None:
        raise SerializationError(f"nothing here knows how to receive a {tag}")
    return rebuilder(session, *state)


def _open(stream: bytes | memoryview) -> Any:
    # BytesIO shares `bytes` with us, but would copy a memoryview.
    return io.BytesIO(stream) if isinstance(stream, bytes) else _MemoryFile(stream)


class _MemoryFile:
    """A large stream as a file, of which the unpickler reads each value straight into its place."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        end = len(self._memory) if size < 0 else self._position + size
        data = bytes(self._memory[self._position : end])
        self._position += len(data)
        return data

    def readinto(self, target: memoryview) -> int:
        piece = self._memory[self._position : self._position + len(target)]
        target[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def readline(self) -> bytes:
        rest = bytes(self._memory[self._position :])
        line = rest[: rest.find(b"\n") + 1 or len(rest)]
        self._position += len(line)
        return line
