"""The modes of a caller, carried to the callee with a call that its user wants to carry them.

Torch's modes belong to a thread, and the default dtype to a process: a function that runs elsewhere
runs in none of them. That is how it is with torch's RPC, so it stays so unless a program asks:

    with rpc.carry_modes(), torch.autocast("cpu"):
        rpc.rpc_sync("ps", forward, (batch,))       # forward runs in autocast, too

A call that carries its modes is a call of `run_carried`, which enters them and calls the function.
A backward pass needs none: what a node has to do was settled when it was made.
"""

from __future__ import annotations

import contextlib
import threading
from contextvars import ContextVar
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from lockstitch.devices import accelerators
from lockstitch.modes import Modes
from lockstitch.runtime.functions import KnownFunction, qualified_name
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.futures import Future

    from lockstitch.runtime.packing import WhatToCall

T = TypeVar("T")

_CARRYING: Final[ContextVar[bool]] = ContextVar("lockstitch_carries_modes", default=False)
is_carrying: Final = _CARRYING.get
"""Whether the calls of this thread carry its modes."""


@contextlib.contextmanager
def carry_modes(enabled: bool = True) -> Iterator[None]:
    """Within, calls carry the modes that their caller is in at that moment: autocast, `no_grad` and
    `inference_mode`, and the default dtype. The callee's own calls carry them on.

    It holds for `rpc_sync`, `rpc_async`, `remote`, methods of references and `RemoteModule`s, in
    this thread. With `enabled=False` calls within carry nothing, as without it.

    The default dtype is one of a whole process: while a call brings another one, all threads of the
    callee have it. Raises `RuntimeError`, from the call, where calls with two different ones run at
    once on a worker.
    """
    before = _CARRYING.set(enabled)
    try:
        yield
    finally:
        _CARRYING.reset(before)


class DefaultDtype:
    """Torch's default dtype, of the whole process, set by whoever runs with a carried one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._set: torch.dtype | None = None
        self._own: torch.dtype | None = None

    @contextlib.contextmanager
    def set_to(self, dtype: torch.dtype) -> Iterator[None]:
        """Within, `dtype` is the default. Raises `RuntimeError` while another is set."""
        with self._lock:
            if self._users == 0:
                self._own, self._set = torch.get_default_dtype(), dtype
                if self._own != dtype:
                    torch.set_default_dtype(dtype)
            elif self._set != dtype:
                raise RuntimeError(
                    f"a call that carries the default dtype {self._set} is running on this worker, "
                    f"and another one wants {dtype}: torch has one for a whole process, so callers "
                    "that carry their modes to one worker must have the same"
                )
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._own is not None and self._own != self._set:
                    torch.set_default_dtype(self._own)


DEFAULT_DTYPE: Final = DefaultDtype()


def carried(call: WhatToCall) -> WhatToCall:
    """A call that runs this one in the modes of this thread."""
    function, args, kwargs = call
    modes = Modes.of_this_thread()
    values = (
        (modes.is_grad_enabled, modes.is_inference, modes.autocast, modes.is_autocast_cached),
        torch.get_default_dtype(),
    )
    is_deferred = hasattr(function, "_wrapped_async_rpc_function")
    run = run_carried_async if is_deferred else run_carried
    return run, (values, qualified_name(function) or function, args, kwargs), None


@contextlib.contextmanager
def _entered(values: tuple[Any, torch.dtype]) -> Iterator[None]:
    """Within, this thread is in the modes that a call has brought, and its calls carry them on.
    Autocast for kinds of device that this machine lacks is left out."""
    (is_grad_enabled, is_inference, autocast, is_cached), default_dtype = values
    here = tuple(each for each in autocast if each[0] in accelerators.kinds())
    modes = Modes(is_grad_enabled, is_inference, here, is_cached)
    with modes.active(), DEFAULT_DTYPE.set_to(default_dtype), carry_modes():
        yield


@needed
def run_carried(
    modes: tuple[Any, torch.dtype],
    function: str | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
) -> Any:
    """Runs the function, in the modes of the caller, on the callee."""
    callee = found_here(function)
    with _entered(modes):
        value = callee(*args, **(kwargs or {}))
    return _run_to_its_end(modes, value) if type(value) is CoroutineType else value


async def _run_to_its_end(
    modes: tuple[Any, torch.dtype], coroutine: CoroutineType[Any, Any, T]
) -> T:
    """An `async def` function is in the modes while it runs; the event loop takes them from its
    thread where it waits (but for the default dtype)."""
    with _entered(modes):
        return await coroutine


@needed
def run_carried_async(*call: Any) -> Future[Any]:
    """Does what `run_carried` does, for functions that return a future of their result."""
    future: Future[Any] = run_carried(*call)
    return future


run_carried_async._wrapped_async_rpc_function = run_carried_async  # type: ignore[attr-defined]


def found_here(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function that a call of ours is to call, which callers must be allowed to call."""
    allowed = current_worker().agent.allowed
    if isinstance(function, str):
        return KnownFunction(function).resolved(allowed)
    if allowed is not None:
        allowed.check_callee(function)
    return function


def as_called(_about: object, function: Any, args: Any, kwargs: Any) -> Any:
    """What messages say of the call that such a call is to make."""
    name = function if isinstance(function, str) else getattr(function, "__qualname__", "")
    return name.rpartition(":")[2] or repr(function), args, kwargs


run_carried.as_called = as_called  # type: ignore[attr-defined]
run_carried_async.as_called = as_called  # type: ignore[attr-defined]
