"""Reading what a peer has pickled where a registry says what it may name.

A pickle is a program for a small machine. This one finds only registered names; calls only what it
has found by name, not what the program has made; gives state to instances, never to a class or a
function; and asks for no more memory than there are bytes. It is the machine of the standard
library that is written in Python: the one in C cannot be told such things, and may be made to take
any amount of memory by a few bytes (a place in its memo with a high number).
"""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Any, ClassVar, Final

from lockstitch.errors import RemoteProtocolError, SerializationError, repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.trust.registry import Registry

_Machine: Any = pickle._Unpickler  # the one in Python
_TAKEN_OUT: Final = (
    pickle.PERSID,
    pickle.BINPERSID,
    pickle.EXT1,
    pickle.EXT2,
    pickle.EXT4,
    pickle.INST,
    pickle.OBJ,
)
_LENGTH: Final = struct.Struct("<Q")


class RestrictedUnpickler(_Machine):  # type: ignore[misc]
    """Reads one value from `file`; `own` are names that stand for something of the reader's."""

    dispatch: ClassVar[dict[int, Any]] = dict(_Machine.dispatch)

    def __init__(
        self,
        file: Any,
        registry: Registry,
        own: dict[tuple[str, str], Callable[..., Any]],
        items: Sequence[Any],
    ) -> None:
        super().__init__(file, buffers=items)
        self._registry = registry
        self._own = own
        self._found: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        """A registered thing, or one of `own`. Raises `SerializationError` for any other."""
        found = self._own.get((module, name))
        if found is None:
            found = self._registry.part(module, name)
        self._found.append(found)
        return found

    def load(self) -> Any:
        """The value. Raises `RemoteProtocolError` for what is no pickle of ours."""
        try:
            return super().load()
        except (SerializationError, RemoteProtocolError):
            raise
        except (
            pickle.UnpicklingError,
            EOFError,
            KeyError,
            IndexError,
            AttributeError,
            UnicodeDecodeError,
            OverflowError,
            struct.error,
        ) as error:
            raise RemoteProtocolError(
                f"what a peer pickled is not readable: {repr_of(error)}"
            ) from error

    def _check_callee(self, callee: Any) -> None:
        if not any(each is callee for each in self._found):
            raise RemoteProtocolError("a pickle calls what it has not found by name")

    def _reduce(self) -> None:
        self._check_callee(self.stack[-2])
        _Machine.load_reduce(self)

    def _new_object(self) -> None:
        self._check_callee(self.stack[-2])
        _Machine.load_newobj(self)

    def _new_object_ex(self) -> None:
        self._check_callee(self.stack[-3])
        _Machine.load_newobj_ex(self)

    def _build(self) -> None:
        target = self.stack[-2]
        if isinstance(target, type) or any(each is target for each in self._found):
            raise RemoteProtocolError("a pickle changes a class or a function")
        _Machine.load_build(self)

    def _bytearray(self) -> None:
        (length,) = _LENGTH.unpack(self.read(8))
        self.append(bytearray(self.read(min(length, 1 << 62))))

    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.NEWOBJ[0]] = _new_object
    dispatch[pickle.NEWOBJ_EX[0]] = _new_object_ex
    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.BYTEARRAY8[0]] = _bytearray
    for _code in _TAKEN_OUT:
        dispatch.pop(_code[0])
    del _code
