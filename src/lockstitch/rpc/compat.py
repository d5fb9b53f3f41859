"""Underscore names that ported programs and tools reach for, each in terms of a public operation.

They are offered, not recommended: `lockstitch.rpc.api` shows them under the incumbent's paths.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from lockstitch import autograd
from lockstitch.errors import NotInitializedError
from lockstitch.rpc.agents import RpcAgent, TensorPipeAgent
from lockstitch.rpc.waiting import wait_all
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.worker import PROCESS, current_worker, has_current_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from torch.futures import Future

P = ParamSpec("P")
T = TypeVar("T")

_is_tensorpipe_available = True


def is_available() -> bool:
    """Returns True: there is nothing that could be missing."""
    return True


_NO_TORCHSCRIPT = (
    "TorchScript functions are not carried: pass the Python function that was scripted"
)
_NOT_HERE = {
    "torchscript": _NO_TORCHSCRIPT,
    "jit": _NO_TORCHSCRIPT,
    "profile": "nobody profiles a server process from elsewhere: run torch.profiler.profile() "
    "in each worker, calls are ranges in it",
    "device": "device maps are given to the backend's options, and checked when the workers meet",
    "invoke": "calls are made by rpc_sync, rpc_async and remote",
}


def why_not_here(name: str) -> str:
    """Returns what to tell a program that looks for this name of the incumbent's: a clause that
    begins with a colon, or nothing where nothing is known."""
    lower = name.lower()
    reason = next((text for part, text in _NOT_HERE.items() if part in lower), None)
    if reason is None or name.startswith("__"):
        return ""
    return f": {reason} (see the page on porting from torch.distributed.rpc)"


class AllGatherStates:
    """What one gathering has brought, and the signal that all have come: for programs that gather
    by themselves. What we gather by is `lockstitch.rpc.barriers`."""

    def __init__(self) -> None:
        self.gathered_objects: dict[str, Any] = {}
        self.proceed_signal = threading.Event()


class _ThreadLocal(threading.local):
    """Values of each thread; `future_list` exists within `_wait_all` only."""

    future_list: list[Future[Any]]


_thread_local_var = _ThreadLocal()


@contextlib.contextmanager
def _wait_all() -> Iterator[None]:
    """Waits, at its end, for every `rpc_async` made within on this thread; raises the first
    error."""
    _thread_local_var.future_list = []
    try:
        yield
    finally:
        try:
            wait_all(_thread_local_var.future_list)
        finally:
            del _thread_local_var.future_list


def _require_initialized(function: Callable[P, T]) -> Callable[P, T]:
    """Makes `function` raise `NotInitializedError` where there is no worker."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        current_worker()
        return function(*args, **kwargs)

    return wrapper


# ---------------------------------------------------------------- the agent


def _is_current_rpc_agent_set() -> bool:
    return has_current_worker()


def _get_current_rpc_agent() -> TensorPipeAgent:
    """Returns the current worker as an agent."""
    return TensorPipeAgent(current_worker())


def _set_and_start_rpc_agent(agent: RpcAgent) -> None:
    """Makes the agent's worker the process's own."""
    if PROCESS.worker is not None:
        raise RuntimeError("RPC is already initialized")
    if not isinstance(agent, TensorPipeAgent):
        raise TypeError(f"{agent!r} has no worker of Lockstitch behind it")
    PROCESS.worker = agent.worker


def _reset_current_rpc_agent() -> None:
    """Leaves the process without a worker; the worker itself lives on."""
    PROCESS.worker = None


def _set_rpc_timeout(rpcTimeoutSeconds: float) -> None:  # noqa: N803 - the incumbent's name
    """Sets the default timeout of calls made from now on, in seconds; 0 for none."""
    current_worker().agent.default_timeout = float(rpcTimeoutSeconds)


def enable_gil_profiling(flag: bool) -> None:
    """Accepted from ported programs. There is no C++ agent here whose waits for the GIL it could
    measure."""
    del flag


def _get_debug_info() -> dict[str, str]:
    """Returns all figures of this worker: references, calls, autograd."""
    info = _rref_context_get_debug_info()
    info.update(_get_current_rpc_agent().get_debug_info())
    info.update(autograd._get_debug_info())
    return info


# ---------------------------------------------------------------- references


def _rref_context_get_debug_info() -> dict[str, str]:
    """Returns how many values this worker owns for others, and what is still unconfirmed."""
    return current_worker().service(ReferenceService).debug_info()


def _delete_all_user_and_unforked_owner_rrefs(timeout: timedelta | None = None) -> None:
    """Gives up all references that this worker uses; returns when their owners know, or when the
    time (default 100 s) is over."""
    seconds = 100.0 if timeout is None else timeout.total_seconds()
    try:
        worker = current_worker()
    except NotInitializedError:
        return
    worker.service(ReferenceService).delete_all_users(seconds)


# ---------------------------------------------------------------- picklers


@contextlib.contextmanager
def _use_rpc_pickler(rpc_pickler: Any) -> Iterator[None]:
    """A context manager within which calls of this process are serialized by
    `rpc_pickler.serialize`; callees read them by `internal.deserialize`."""
    api: Any = sys.modules["lockstitch.rpc.api"]
    before = api._default_pickler
    api._default_pickler = rpc_pickler
    try:
        yield
    finally:
        api._default_pickler = before
