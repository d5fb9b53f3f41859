"""Python values → `Payload`s (`wire.encodings`). Tensors and large buffers are extracted and never
pickled.

In a pickle stream an extracted item stands as an out-of-band buffer, so the unpickler is simply
handed the received tensors as its buffers. Closures, which pickle refuses, go by `cloudpickle`.
"""

from __future__ import annotations

import marshal
import pickle
import sys
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import cloudpickle
import numpy
import torch

from lockstitch.errors import LockstitchError, SerializationError, traceback_of
from lockstitch.wire import arrays
from lockstitch.wire.compiled import compile_here, is_compiled, parts_of
from lockstitch.wire.encodings import (
    FLAT_WITH_OWN,
    MARSHAL,
    NOTHING,
    ONE_ITEM,
    ONE_ITEM_TWICE,
    ONE_TENSOR,
    PICKLE,
    TWO_ITEMS,
    PickleSession,
    PicklingRegistry,
    Records,
    Reduce,
)
from lockstitch.wire.messages import Payload
from lockstitch.wire.subclasses import (
    check_wants_no_gradient,
    is_plain_at_heart,
    rebuild_subclass,
    reduce_subclass,
)
from lockstitch.wire.tensors import is_extractable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.ids import WorkerId

T = TypeVar("T")

_SCALARS: Final = frozenset({int, float, bool, type(None), complex})
_STRINGS: Final = frozenset({str, bytes})
_TENSORS: Final = frozenset({torch.Tensor})
_PLAIN: Final = _SCALARS | _STRINGS
_FLAT: Final = _PLAIN | _TENSORS
_SEQUENCES: Final = frozenset({tuple, list})
_LIFTED_TYPES: Final = frozenset({torch.Tensor, torch.nn.Parameter})

# Above this, `bytes` go out of band; it is also where the C pickler stops copying them.
_LARGE_BYTES: Final = 64 * 1024

# Where a registry is: what has another way than its own.
_BY_CONTENT: Final = (numpy.ndarray, numpy.generic, Enum)

# For values whose types have been looked at.
_dumps: Final = cast("Callable[[object], bytes]", marshal.dumps)

_OF_PICKLERS: Final = frozenset({__file__, cloudpickle.cloudpickle.__file__})

_NO_VALUES: Final = Payload(MARSHAL, marshal.dumps(()), ())
_NOTHING: Final = Payload(NOTHING, b"", ())
_new_tuple: Final = tuple.__new__  # half of what it costs to call the class of a named tuple


def pack(
    value: object,
    registry: PicklingRegistry,
    to: WorkerId | None = None,
    kept: list[object] | None = None,
    *,
    records: Records | None = None,
) -> tuple[Payload, set[int]]:
    """Encodes `value`. Also returns the ids of extracted parameters that must stay leaves (see
    `PickleSession.leaf_ids`); `kept` and `records`: see `PickleSession`.

    Raises `SerializationError` where something in it cannot cross the wire.
    """
    cls = type(value)
    if value is None:
        return _NOTHING, set()
    if type(value) is torch.Tensor and is_extractable(value):
        return _new_tuple(Payload, (ONE_TENSOR, b"", (value,))), set()
    if cls in _SEQUENCES:
        values: Sequence[object] = value  # type: ignore[assignment]
        payload = pack_flat(values) or pack_flat_with_own(values, registry, to, kept)
        if payload is not None:
            return payload, set()
    elif cls in _SCALARS:
        return Payload(MARSHAL, _dumps(value), ()), set()
    return _pack_pickle(value, registry, PickleSession(to, kept, records=records))


def pack_arguments(args: tuple[object, ...]) -> Payload | None:
    """`pack_flat`, the short way for no argument, one tensor and two."""
    if not args:
        return _NO_VALUES
    first = args[0]
    if type(first) is torch.Tensor and len(args) <= 2 and is_extractable(first):
        if len(args) == 1:
            return _new_tuple(Payload, (MARSHAL, ONE_ITEM, (first,)))
        second = args[1]
        if second is first:
            return _new_tuple(Payload, (MARSHAL, ONE_ITEM_TWICE, (first,)))
        if type(second) is torch.Tensor and is_extractable(second):
            return _new_tuple(Payload, (MARSHAL, TWO_ITEMS, (first, second)))
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
    if not all(map(is_extractable, items)):
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
            raise _refusal(
                value,
                f"{first}. In a job with a registry code does not travel: name a function or class "
                "that a module holds",
            ) from _from_users_code(first)
        # Functions and classes that no module holds: cloudpickle sends them by value.
        try:
            again = PickleSession(session.to, session.kept, records=session.records)
            return _run_pickler(_ClosurePickler, value, registry, again)
        except LockstitchError:
            raise
        except (pickle.PickleError, AttributeError, TypeError) as second:
            raise _refusal(value, f"{second}{_advice(str(second))}") from _from_users_code(second)


def can_pack(value: object, registry: PicklingRegistry, *, records: Records | None = None) -> bool:
    """Returns whether `value` can be pickled. Its reducers are run."""
    try:
        _pack_pickle(value, registry, PickleSession(None, None, records=records))
    except Exception:  # noqa: BLE001 - whatever a __reduce__ may raise
        return False
    return True


def _refusal(value: object, reason: str) -> SerializationError:
    error = SerializationError(f"cannot send {shorten(value)}: {reason}")
    error.reason = reason
    return error


def _from_users_code(error: BaseException) -> BaseException | None:
    """The error, if it was raised in code that can be looked at (the traceback then says where), or
    None if the pickler itself raised it, which has said all."""
    last = traceback_of(error)
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    own = last is not None and last.tb_frame.f_code.co_filename in _OF_PICKLERS
    return None if own else error


def _run_pickler(
    pickler_class: type[_Pickler] | type[_ClosurePickler],
    value: object,
    registry: PicklingRegistry,
    session: PickleSession,
) -> tuple[Payload, set[int]]:
    chunks: list[bytes] = []
    buffers: list[pickle.PickleBuffer] = []
    pickler = pickler_class(SimpleNamespace(write=chunks.append), 5, buffer_callback=buffers.append)
    extracted: dict[int, torch.Tensor] = {}
    pickler.prepare(session, registry, extracted)
    try:
        pickler.dump(value)
    except BaseException:
        session.take_back()
        raise
    for buffer in buffers:
        tensor = extracted.get(id(buffer))
        session.items.append(tensor if tensor is not None else buffer.raw())
    session.keep_plain_leaves()
    stream = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    return Payload(PICKLE, stream, session.items), session.leaf_ids


def take(item: T) -> T:
    """Returns its argument: a pickle stream calls it on an extracted item."""
    return item


def rebuild(tag: str, *_state: object) -> Any:
    """Stands in a pickle stream for a registered type; the unpickler puts its own in its place."""
    raise SerializationError(f"a {tag} of Lockstitch can only be unpickled by a worker")


class _Reducing:
    """The part of both picklers that looks at an object before they do so themselves."""

    session: PickleSession
    reducers: dict[type, tuple[str, Reduce]]
    extracted: dict[int, torch.Tensor]
    is_restricted: bool

    def prepare(
        self,
        session: PickleSession,
        registry: PicklingRegistry,
        extracted: dict[int, torch.Tensor],
    ) -> None:
        self.session = session
        self.reducers = registry.reducers
        self.is_restricted = registry.allowed is not None
        self.extracted = extracted

    def reduce_own(self, obj: object) -> Any:
        """The reduction of tensors and registered types; NotImplemented for all others."""
        cls = type(obj)
        if cls in _LIFTED_TYPES:
            return self._reduce_plain(cast("torch.Tensor", obj))
        if self.is_restricted and isinstance(obj, _BY_CONTENT):
            return _reduce_by_content(obj)
        entry = self.reducers.get(cls)
        if entry is not None:
            tag, reduce = entry
            return rebuild, (tag, *reduce(obj, self.session))
        if isinstance(obj, torch.Tensor):
            return self._reduce_subclass(obj)
        return self._reduce_code(obj)

    def _reduce_code(self, obj: object) -> Any:
        """Modules, and functions that were compiled."""
        if isinstance(obj, torch.nn.Module):
            if isinstance(obj, torch.jit.ScriptModule):  # torch's own words name none of it
                raise pickle.PicklingError(f"Script module {obj.original_name!r} is compiled")
            own_way = getattr(type(obj), "__rpc_reduce__", None)
            if own_way is not None:
                return own_way(obj)
            # Submodules come by themselves.
            self.session.leaf_ids.update(map(id, obj.parameters(recurse=False)))
        elif is_compiled(obj) and not self.is_restricted and not _is_found_by_name(obj):
            return compile_here, parts_of(cast("Callable[..., Any]", obj))
        return NotImplemented

    def _reduce_plain(self, tensor: torch.Tensor) -> Any:
        if is_extractable(tensor):
            return take, (self._extract(tensor),)
        check_wants_no_gradient(tensor, self.session)
        return NotImplemented

    def _extract(self, tensor: torch.Tensor) -> pickle.PickleBuffer:
        # A writable placeholder: a read-only one would be wrapped by the unpickler.
        buffer = pickle.PickleBuffer(bytearray())
        self.extracted[id(buffer)] = tensor
        return buffer

    def _reduce_subclass(self, tensor: torch.Tensor) -> Any:
        if is_plain_at_heart(tensor):
            plain, state = reduce_subclass(tensor)
            if is_extractable(plain):
                self.session.plain.append((tensor, plain))
                return rebuild_subclass, (type(tensor), self._extract(plain), state)
        check_wants_no_gradient(tensor, self.session)
        return NotImplemented


def _is_found_by_name(function: Any) -> bool:
    return getattr(sys.modules.get(function.__module__), function.__qualname__, None) is function


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
    """Returns what a user can do about an object that torch refuses to pickle, such as a script."""
    if not reason.startswith("Script"):
        return ""
    return (
        " (TorchScript is not carried: pass the Python function or module that was scripted, or "
        "the bytes that torch.jit.save writes)"
    )


def shorten(value: object) -> str:
    """The beginning of its `repr`."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__ must not hide the reason
        text = f"a {type(value).__qualname__}"
    return text if len(text) <= 200 else text[:200] + " …"
