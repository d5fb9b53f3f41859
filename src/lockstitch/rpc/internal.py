"""Names of the incumbent's `internal` module that programs and tools import.

`serialize` and `deserialize` turn a value into bytes and a list of the tensors in it, and back, as
it would cross the wire. Calls do not go this way unless a program puts a pickler of its own in
force.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lockstitch.autograd.context import context_of_this_thread
from lockstitch.imports import IMPORTS
from lockstitch.rpc.functions import async_execution
from lockstitch.rpc.profiling import RPCExecMode, profiling_key
from lockstitch.rref.rref import RRef
from lockstitch.wire.encodings import PicklingRegistry
from lockstitch.wire.messages import Payload
from lockstitch.wire.pickling import pack
from lockstitch.wire.unpickling import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.futures import Future

    from lockstitch.wire.encodings import Item

__all__ = [
    "PythonUDF",
    "RPCExecMode",
    "_build_rpc_profiling_key",
    "_internal_rpc_pickler",
    "deserialize",
    "serialize",
]


class PythonUDF(NamedTuple):
    """A call before it is pickled."""

    func: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any] | None


class _InternalRPCPickler:
    """Serializes values with and without a current worker; references are forked by the worker
    they belong to."""

    def __init__(self) -> None:
        self._registry = PicklingRegistry()
        self._registry.find = IMPORTS.find
        self._registry.register(
            RRef,
            lambda reference, _session: (reference._serialize(),),
            lambda _session, state: RRef._deserialize(state),
        )

    def serialize(self, obj: object) -> tuple[bytes, list[Item]]:
        """Returns `obj` as bytes, and the tensors (or large buffers) lifted out of it."""
        payload, _ = pack(obj, self._registry, records=_records)
        return bytes([payload.encoding]) + bytes(payload.stream), list(payload.items)

    def deserialize(self, binary_data: bytes, tensor_table: Sequence[Item]) -> Any:
        """Returns the value that was serialized."""
        return unpack(Payload(binary_data[0], binary_data[1:], tensor_table), self._registry)


def _records() -> bool:
    return context_of_this_thread() is not None and torch.is_grad_enabled()


_internal_rpc_pickler = _InternalRPCPickler()
serialize = _internal_rpc_pickler.serialize
deserialize = _internal_rpc_pickler.deserialize


def _build_rpc_profiling_key(
    exec_type: RPCExecMode, func_name: str, current_worker_name: str, dst_worker_name: str
) -> str:
    """Returns the name that the range of a call has in a profile."""
    return profiling_key(exec_type, func_name, current_worker_name, dst_worker_name)


def run_pickled(binary_data: bytes, tensor_table: Sequence[Item]) -> Any:
    """Makes, on the callee, the call that a program's own pickler has serialized."""
    function, args, kwargs = deserialize(binary_data, tensor_table)
    return function(*args, **(kwargs or {}))


@async_execution
def run_pickled_async(binary_data: bytes, tensor_table: Sequence[Item]) -> Future[Any]:
    """Does what `run_pickled` does, for functions that return a future of their result."""
    future: Future[Any] = run_pickled(binary_data, tensor_table)
    return future
