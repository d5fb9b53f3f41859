"""Python values ⇄ `Payload`s. Tensors and large buffers are lifted out and never pickled.

Five encodings, the cheapest that fits: nothing at all for None, one lifted tensor alone, `marshal`
for flat tuples and lists of exactly plain values and tensors, the same with instances of registered
types among them, and pickle protocol 5 for the rest. In a pickle stream a lifted item stands as an
out-of-band buffer, so the unpickler is simply handed the received tensors as its buffers. Closures,
which pickle refuses, go by `cloudpickle`.

Higher floors teach the pickler their own types through a `PicklingRegistry`.
"""

from __future__ import annotations

import contextlib
import io
import marshal
import pickle
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import cloudpickle
import numpy
import torch

from lockstitch.errors import LockstitchError, RemoteProtocolError, SerializationError
from lockstitch.wire import arrays
from lockstitch.wire.messages import Payload
from lockstitch.wire.restricted import RestrictedUnpickler
from lockstitch.wire.scanning import check_marshal
from lockstitch.wire.tensors import is_liftable

if TYPE_CHECKING:
    from lockstitch.ids import WorkerId
    from lockstitch.trust.registry import Registry

T = TypeVar("T")
Item = torch.Tensor | memoryview | None

NOTHING: Final = 0
ONE_TENSOR: Final = 1
MARSHAL: Final = 2
PICKLE: Final = 3
FLAT_WITH_OWN: Final = 4

CARRY_OWN: Final = (PICKLE, FLAT_WITH_OWN)
"""The encodings in which instances of registered types may be."""

_SCALARS: Final = frozenset({int, float, bool, type(None), complex})
_STRINGS: Final = frozenset({str, bytes})
_TENSORS: Final = frozenset({torch.Tensor})
_PLAIN: Final = _SCALARS | _STRINGS
_FLAT: Final = _PLAIN | _TENSORS
_SEQUENCES: Final = frozenset({tuple, list})
_LIFTED_TYPES: Final = frozenset({torch.Tensor, torch.nn.Parameter})
# Above this, `bytes` go out of band; it is also where the C pickler stops copying them.
_LARGE_BYTES: Final = 64 * 1024
# What goes by marshal is flat: a tuple or list of plain values, and places in tuples.
_MOST_NESTING: Final = 4


# Where a registry is: what has another way than its own, and what stands in a pickle stream for
# arrays and scalars of NumPy.
_BY_CONTENT: Final = (numpy.ndarray, numpy.generic, Enum)
_ARRAYS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    (arrays.__name__, each.__name__): each for each in (arrays.array_of, arrays.scalar_of)
}

# For values whose types have been looked at.
_dumps: Final = cast("Callable[[object], bytes]", marshal.dumps)

_NO_VALUES: Final = Payload(MARSHAL, marshal.dumps(()), ())
_ONE_ITEM: Final = marshal.dumps((...,))
_TWO_ITEMS: Final = marshal.dumps((..., ...))
_ONE_ITEM_TWICE: Final = marshal.dumps((..., (0,)))


class PickleSession:
    """One value being pickled: collects what is lifted out."""

    __slots__ = ("items", "kept", "sealed", "to", "undo")

    def __init__(self, to: WorkerId | None, kept: list[object] | None) -> None:
        self.to = to
        self.kept = kept
        """Takes what the sender will keep until the value was answered; None: nothing is kept."""
        self.items: list[Item] = []
        self.sealed: set[int] = set()
        """Ids of parameters that belong to a pickled module and so stay leaves."""
        self.undo: list[Callable[[], None]] = []
        """What takes back what reducers did, called if the pickling fails."""

    def take_back(self) -> None:
        """The pickling has failed."""
        for undo in self.undo:
            undo()

    def keep_undo(self) -> None:
        """The pickling is done, but the message may still turn out to be none that can be sent."""
        if self.undo and self.kept is not None:
            self.kept.append(TakeBack(self.undo))


class TakeBack:
    """Kept with what a request keeps: takes back what its making has begun, if it never leaves."""

    def __init__(self, undo: list[Callable[[], None]]) -> None:
        self._undo = undo

    def __call__(self) -> None:
        for undo in self._undo:
            undo()


class UnpickleSession:
    """One value being unpickled; `received` collects what must be confirmed before it is used."""

    __slots__ = ("received", "sender")

    def __init__(self, sender: WorkerId | None) -> None:
        self.sender = sender
        self.received: list[Any] = []


Reduce = Callable[[Any, PickleSession], tuple[Any, ...]]
Rebuild = Callable[..., Any]


class PicklingRegistry:
    """How instances of certain types cross the wire, by exact type; one registry per worker."""

    def __init__(self) -> None:
        self.reducers: dict[type, tuple[str, Reduce]] = {}
        self.rebuilders: dict[str, Rebuild] = {}
        self.allowed: Registry | None = None
        """What peers may name in what they send; None: anything."""

    def register(
        self,
        cls: type[T],
        reduce: Callable[[T, PickleSession], tuple[Any, ...]],
        rebuild: Callable[..., T],
    ) -> None:
        """Instances of exactly `cls` cross as `reduce(instance, session)`, and arrive as
        `rebuild(session, *state)`."""
        tag = cls.__qualname__
        if tag in self.rebuilders:
            raise ValueError(f"a type named {tag!r} is registered already")
        self.reducers[cls] = (tag, reduce)
        self.rebuilders[tag] = rebuild


# ---------------------------------------------------------------- packing


def pack(
    value: object,
    registry: PicklingRegistry,
    to: WorkerId | None = None,
    kept: list[object] | None = None,
) -> tuple[Payload, set[int]]:
    """Encodes `value`. Also returns the ids of lifted parameters that must stay leaves (see
    `PickleSession.sealed`); `kept`: see `PickleSession.kept`.

    Raises `SerializationError` where something in it cannot cross the wire.
    """
    cls = type(value)
    if value is None:
        return Payload(NOTHING, b"", ()), set()
    if type(value) is torch.Tensor and is_liftable(value):
        return Payload(ONE_TENSOR, b"", (value,)), set()
    if cls in _SEQUENCES:
        values: Sequence[object] = value  # type: ignore[assignment]
        payload = pack_flat(values) or pack_flat_with_own(values, registry, to, kept)
        if payload is not None:
            return payload, set()
    elif cls in _SCALARS:
        return Payload(MARSHAL, _dumps(value), ()), set()
    return _pack_pickle(value, registry, PickleSession(to, kept))


def pack_arguments(args: tuple[object, ...]) -> Payload | None:
    """`pack_flat`, the short way for no argument, one tensor and two."""
    if not args:
        return _NO_VALUES
    first = args[0]
    if type(first) is torch.Tensor and len(args) <= 2 and is_liftable(first):
        if len(args) == 1:
            return Payload(MARSHAL, _ONE_ITEM, (first,))
        second = args[1]
        if second is first:
            return Payload(MARSHAL, _ONE_ITEM_TWICE, (first,))
        if type(second) is torch.Tensor and is_liftable(second):
            return Payload(MARSHAL, _TWO_ITEMS, (first, second))
    return pack_flat(args)


def _is_large(value: object) -> bool:
    return type(value) in _STRINGS and len(value) >= _LARGE_BYTES  # type: ignore[arg-type]


def pack_flat(values: Sequence[object]) -> Payload | None:
    """Encodes a tuple or list of exactly plain values and tensors by `marshal`; None if it is not
    one."""
    types = set(map(type, values))
    if not types <= _FLAT or (types & _STRINGS and any(map(_is_large, values))):
        return None
    if torch.Tensor not in types:
        return Payload(MARSHAL, _dumps(values), ())
    items = [value for value in values if type(value) is torch.Tensor]
    if not all(map(is_liftable, items)):
        return None
    if len(items) > 1 and len(set(map(id, items))) < len(items):
        items, marked = _mark_repeated(values)
    else:
        marked = [... if type(value) is torch.Tensor else value for value in values]
    stream = marshal.dumps(tuple(marked) if type(values) is tuple else marked)
    return Payload(MARSHAL, stream, items)


def pack_flat_with_own(
    values: Sequence[object],
    registry: PicklingRegistry,
    to: WorkerId | None,
    kept: list[object] | None,
) -> Payload | None:
    """`pack_flat` where there are instances of registered types, too; None if that is not so, if
    one of them stands there twice, or is made of other than plain values."""
    reducers = registry.reducers
    own = set(map(type, values)) - _FLAT
    if not own or not own <= reducers.keys():
        return None
    plain = [None if type(value) in own else value for value in values]
    mine = [value for value in values if type(value) in own]
    payload = pack_flat(plain)
    if payload is None or len(set(map(id, mine))) < len(mine):
        return None
    session = PickleSession(to, kept)
    marked = marshal.loads(payload.stream)
    try:
        entries = []
        for value, mark in zip(values, marked, strict=True):
            if type(value) in own:
                tag, reduce = reducers[type(value)]
                entries.append((tag, *reduce(value, session)))
            else:
                entries.append(mark)
        stream = marshal.dumps(tuple(entries) if type(values) is tuple else entries)
    except BaseException as error:
        session.take_back()
        if isinstance(error, ValueError):
            return None
        raise
    session.keep_undo()
    return Payload(FLAT_WITH_OWN, stream, payload.items)


def _mark_repeated(values: Sequence[object]) -> tuple[list[torch.Tensor], list[Any]]:
    """The tensors among `values`, each once, and the values with `...` for a tensor and `(n,)` for
    one that is item number n: what is one tensor here shall be one tensor there."""
    items: list[torch.Tensor] = []
    marked: list[Any] = []
    places: dict[int, int] = {}
    for value in values:
        if not isinstance(value, torch.Tensor):
            marked.append(value)
        elif (place := places.setdefault(id(value), len(items))) < len(items):
            marked.append((place,))
        else:
            items.append(value)
            marked.append(...)
    return items, marked


def _pack_pickle(
    value: object, registry: PicklingRegistry, session: PickleSession
) -> tuple[Payload, set[int]]:
    try:
        return _run_pickler(_Pickler, value, registry, session)
    except (pickle.PickleError, AttributeError, TypeError, ModuleNotFoundError) as first:
        if registry.allowed is not None:
            raise SerializationError(
                f"cannot send {_shorten(value)}: {first}. In a job with a registry code does not "
                "travel: name a function or class that a module holds"
            ) from first
        # Functions and classes that no module holds: cloudpickle sends them by value.
        try:
            again = PickleSession(session.to, session.kept)
            return _run_pickler(_ClosurePickler, value, registry, again)
        except LockstitchError:
            raise
        except (pickle.PickleError, AttributeError, TypeError) as second:
            raise SerializationError(
                f"cannot send {_shorten(value)}: {second}{_advice(str(second))}"
            ) from first


def _run_pickler(
    pickler_class: type[_Pickler] | type[_ClosurePickler],
    value: object,
    registry: PicklingRegistry,
    session: PickleSession,
) -> tuple[Payload, set[int]]:
    chunks: list[bytes] = []
    buffers: list[pickle.PickleBuffer] = []
    pickler = pickler_class(SimpleNamespace(write=chunks.append), 5, buffer_callback=buffers.append)
    lifted: dict[int, torch.Tensor] = {}
    pickler.prepare(session, registry, lifted)
    try:
        pickler.dump(value)
    except BaseException:
        session.take_back()
        raise
    for buffer in buffers:
        tensor = lifted.get(id(buffer))
        session.items.append(tensor if tensor is not None else buffer.raw())
    session.keep_undo()
    stream = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    return Payload(PICKLE, stream, session.items), session.sealed


def take(item: T) -> T:
    """What a pickle stream calls on a lifted item."""
    return item


def rebuild(tag: str, *_state: object) -> Any:
    """Stands in a pickle stream for a registered type; the unpickler puts its own in its place."""
    raise SerializationError(f"a {tag} of Lockstitch can only be unpickled by a worker")


class _Reducing:
    """What both picklers do with an object before they look at it themselves."""

    session: PickleSession
    reducers: dict[type, tuple[str, Reduce]]
    lifted: dict[int, torch.Tensor]
    is_restricted: bool

    def prepare(
        self,
        session: PickleSession,
        registry: PicklingRegistry,
        lifted: dict[int, torch.Tensor],
    ) -> None:
        self.session = session
        self.reducers = registry.reducers
        self.is_restricted = registry.allowed is not None
        self.lifted = lifted

    def reduce_own(self, obj: object) -> Any:
        """The reduction of tensors and registered types; NotImplemented for all others."""
        cls = type(obj)
        if cls in _LIFTED_TYPES:
            if not is_liftable(cast("torch.Tensor", obj)):
                return NotImplemented
            # A writable placeholder: a read-only one would be wrapped by the unpickler.
            buffer = pickle.PickleBuffer(bytearray())
            self.lifted[id(buffer)] = cast("torch.Tensor", obj)
            return take, (buffer,)
        if self.is_restricted and isinstance(obj, _BY_CONTENT):
            return _reduce_by_content(obj)
        entry = self.reducers.get(cls)
        if entry is not None:
            tag, reduce = entry
            return rebuild, (tag, *reduce(obj, self.session))
        if isinstance(obj, torch.nn.Module):
            own_way = getattr(cls, "__rpc_reduce__", None)
            if own_way is not None:
                return own_way(obj)
            # Submodules come by themselves.
            self.session.sealed.update(map(id, obj.parameters(recurse=False)))
        return NotImplemented


def _reduce_by_content(obj: Any) -> Any:
    """NumPy's arrays and scalars, and members of enumerations, which some versions of Python get by
    `getattr`: for an unpickler that knows no names but registered ones."""
    if isinstance(obj, Enum):
        return type(obj), (obj.value,)
    if type(obj) is numpy.ndarray:
        content, said = arrays.described(obj)
        return arrays.array_of, (pickle.PickleBuffer(content), *said)
    if isinstance(obj, numpy.generic):
        _, said = arrays.described(numpy.asarray(obj))
        return arrays.scalar_of, (said[0], obj.tobytes())
    return NotImplemented


class _Pickler(_Reducing, pickle.Pickler):
    def reducer_override(self, obj: object) -> Any:
        return self.reduce_own(obj)


class _ClosurePickler(_Reducing, cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: object) -> Any:
        reduced = self.reduce_own(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _advice(reason: str) -> str:
    """What to do about what torch says of its scripts."""
    if not reason.startswith("Script"):
        return ""
    return " (TorchScript is not carried: pass the Python function that was scripted)"


def _shorten(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__ must not hide the reason
        text = f"a {type(value).__qualname__}"
    return text if len(text) <= 200 else text[:200] + " …"


# ---------------------------------------------------------------- unpacking


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
        raise RemoteProtocolError(f"a payload does not fit its items: {error!r}") from error
    if encoding != PICKLE:
        raise RemoteProtocolError(f"unknown encoding {encoding} of a payload")
    return _unpickle(payload, registry, session or UnpickleSession(None))


def _unpickle(payload: Payload, registry: PicklingRegistry, session: UnpickleSession) -> Any:
    _, stream, items = payload
    if registry.allowed is not None:
        rebuild_here = partial(_rebuild, session, registry.rebuilders)
        own: dict[tuple[str, str], Callable[..., Any]] = {
            (__name__, "rebuild"): rebuild_here,
            (__name__, "take"): take,
            **_ARRAYS,
        }
        return RestrictedUnpickler(_open(stream), registry.allowed, own, items).load()
    unpickler = _Unpickler(_open(stream), buffers=items)
    unpickler.prepare(session, registry)
    try:
        return unpickler.load()
    except (ImportError, AttributeError) as error:
        raise SerializationError(
            f"{type(error).__name__}: {error}. The RPC pickler does not serialize the code of "
            "functions and classes that a module holds: make sure that the same module defines "
            "them on caller and callee"
        ) from error


def _unpack_flat(stream: bytes | memoryview, items: Sequence[Any]) -> Any:
    if (stream == _ONE_ITEM and len(items) == 1) or (stream == _TWO_ITEMS and len(items) == 2):
        return tuple(items)
    if stream == _ONE_ITEM_TWICE and len(items) == 1:
        return items[0], items[0]
    value = marshal.loads(stream)
    if not items:
        return value
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


def load_plain(stream: bytes | memoryview, allowed: Registry | None) -> Any:
    """Reads a pickle in which nothing was lifted out; names as in `PicklingRegistry.allowed`."""
    if allowed is None:
        return pickle.loads(stream)
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
        super().__init__({(__name__, "rebuild"): rebuild_here})

    def __missing__(self, _name: tuple[str, str]) -> Callable[..., Any]:
        return _Nothing

    def get(self, name: tuple[str, str], default: Any = None) -> Any:  # noqa: ARG002
        """Never without something."""
        return self[name]


class _Unpickler(pickle.Unpickler):
    def prepare(self, session: UnpickleSession, registry: PicklingRegistry) -> None:
        # Not a method: the unpickler's memo keeps it, and would keep the unpickler with all values.
        self._rebuild = partial(_rebuild, session, registry.rebuilders)

    def find_class(self, module: str, name: str) -> Any:
        if name == "rebuild" and module == __name__:
            return self._rebuild
        return super().find_class(module, name)


class _Discarder(_Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "rebuild" and module == __name__:
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
