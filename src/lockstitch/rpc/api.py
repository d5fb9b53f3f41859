"""Calls to other workers, and the end of this one.

Every function here looks up the worker that the calling code belongs to, and hands over to it.

The underscore names are those that programs written for the incumbent reach for in its `api`
module. They are defined elsewhere (`rpc.compat`, `rpc.groups`), but `shutdown` looks them up
*here*, at call time, since here is where programs patch them.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from torch import Tensor
from torch.autograd.profiler import record_function

from lockstitch.compiling import opaque
from lockstitch.ids import WorkerInfo
from lockstitch.interrupts import elsewhere
from lockstitch.rpc import leaving
from lockstitch.rpc.compat import (
    AllGatherStates,
    _delete_all_user_and_unforked_owner_rrefs,
    _get_current_rpc_agent,
    _get_debug_info,
    _is_current_rpc_agent_set,
    _require_initialized,
    _reset_current_rpc_agent,
    _rref_context_get_debug_info,
    _set_and_start_rpc_agent,
    _set_rpc_timeout,
    _thread_local_var,
    _use_rpc_pickler,
    _wait_all,
    enable_gil_profiling,
)
from lockstitch.rpc.constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT
from lockstitch.rpc.groups import (
    _all_gather,
    _barrier,
    _broadcast_to_followers,
    _gather_to_leader,
    _wait_all_workers,
)
from lockstitch.rpc.internal import (
    PythonUDF,
    _internal_rpc_pickler,
    run_pickled,
    run_pickled_async,
)
from lockstitch.rpc.profiling import (
    RPCExecMode,
    function_name,
    is_profiling,
    profiling_key,
)
from lockstitch.rpc.quiescence import TimeLimit
from lockstitch.rpc.waiting import wait_all
from lockstitch.rref.rref import RRef
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.call_spans import CALL_SPANS, traced
from lockstitch.runtime.carried_modes import carried, is_carrying
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.pending import Future
from lockstitch.runtime.spans_of_callers import begun_in_span, itself, within_span
from lockstitch.runtime.worker import Worker, current_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    Target = str | int | WorkerInfo
    Function = Callable[..., Any]
    Call = tuple[Function, tuple[Any, ...], dict[str, Any] | None]

PyRRef = RRef

__all__ = [
    "AllGatherStates",
    "Future",
    "PyRRef",
    "RRef",
    "UNSET_RPC_TIMEOUT",
    "WorkerInfo",
    "_all_gather",
    "_barrier",
    "_broadcast_to_followers",
    "_default_pickler",
    "_delete_all_user_and_unforked_owner_rrefs",
    "_gather_to_leader",
    "_get_current_rpc_agent",
    "_get_debug_info",
    "_ignore_rref_leak",
    "_is_current_rpc_agent_set",
    "_require_initialized",
    "_reset_current_rpc_agent",
    "_rref_context_get_debug_info",
    "_set_and_start_rpc_agent",
    "_set_rpc_timeout",
    "_thread_local_var",
    "_to_worker_info",
    "_use_rpc_pickler",
    "_wait_all",
    "_wait_all_workers",
    "enable_gil_profiling",
    "get_rpc_timeout",
    "get_worker_info",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "wait_all",
]

T = TypeVar("T")

Later: TypeAlias = "torch.futures.Future[T] | Coroutine[Any, Any, T]"
"""What a function returns whose result is there later."""

_ignore_rref_leak = True
"""Programs set this to False to have `shutdown` complain about values that others still refer
to."""

_default_pickler: Any = _internal_rpc_pickler
"""What serializes calls while a program has put its own in force; see `_use_rpc_pickler`."""


# ---------------------------------------------------------------- calls


@overload
def rpc_sync(
    to: Target,
    func: Callable[..., Later[T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> T: ...
@overload
def rpc_sync(
    to: Target,
    func: Callable[..., T],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> T: ...
@opaque
def rpc_sync(
    to: Target,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Any:
    """Runs `func(*args, **kwargs)` on worker `to` and returns its value.

    `to`: a worker's name, rank or `WorkerInfo`; this worker too. `func`: anything callable that the
    callee can import, or a closure, which is sent along. `timeout`: seconds for the whole call, 0
    for none, by default that of `get_rpc_timeout`; one given here also bounds calls nested in it.

    Raises what `func` raised, as its own type; `RpcTimeoutError`; `PeerDiedError` when the callee
    is gone; `SerializationError` when something cannot cross; `RpcError` for an unknown worker;
    `NotInitializedError` without a worker here; `TypeError` for arguments of the wrong kind.
    """
    worker = current_worker()
    callee = _callee(worker, to, func)
    if CALL_SPANS.tracer is not None:

        def make() -> Any:
            with _range_if_profiling(RPCExecMode.SYNC, func, worker, callee):
                call = _prepare(func, args, kwargs)
                return worker.agent.outgoing.call(callee.worker, *call, timeout)

        return within_span(name_of(func), callee.name, make)
    function, arguments, keywords = _prepare(func, args, kwargs)
    if is_profiling():
        with record_function(_key(RPCExecMode.SYNC, func, worker, callee)):
            return worker.agent.outgoing.call(callee.worker, function, arguments, keywords, timeout)
    return worker.agent.outgoing.call(callee.worker, function, arguments, keywords, timeout)


@overload
def rpc_async(
    to: Target,
    func: Callable[..., Later[T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Future[T]: ...
@overload
def rpc_async(
    to: Target,
    func: Callable[..., T],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Future[T]: ...
@opaque
def rpc_async(
    to: Target,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Future[Any]:
    """Like `rpc_sync`, but returns a future of the value at once. (The first call to a worker
    connects to it; and where too much is under way already, it waits within its timeout.)

    The future is a `torch.futures.Future` that can also be awaited (`await future`). Arguments that
    cannot be sent raise here; everything else is raised by the future's `wait`.
    """
    worker = current_worker()
    callee = _callee(worker, to, func)
    call = worker.agent.outgoing.call_async
    if CALL_SPANS.tracer is not None:

        def begin() -> Future[Any]:
            with _range_if_profiling(RPCExecMode.ASYNC, func, worker, callee):
                return call(callee.worker, *_prepare(func, args, kwargs), timeout)

        future = begun_in_span(name_of(func), callee.name, begin, itself)
    elif is_profiling():
        with record_function(_key(RPCExecMode.ASYNC, func, worker, callee)):
            future = call(callee.worker, *_prepare(func, args, kwargs), timeout)
    else:
        function, arguments, keywords = _prepare(func, args, kwargs)
        future = call(callee.worker, function, arguments, keywords, timeout)
    if hasattr(_thread_local_var, "future_list"):
        _thread_local_var.future_list.append(future)
    return future


@overload
def remote(
    to: Target,
    func: Callable[..., Later[T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> RRef[T]: ...
@overload
def remote(
    to: Target,
    func: Callable[..., T],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> RRef[T]: ...
@opaque
def remote(
    to: Target,
    func: Function,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> RRef[Any]:
    """Like `rpc_sync`, but leaves the value on worker `to` and returns a reference to it at once.

    `timeout` bounds the making of the value. What goes wrong in it is raised where the reference is
    used.
    """
    worker = current_worker()
    callee = _callee(worker, to, func)
    create = worker.service(ReferenceService).create_remote
    if CALL_SPANS.tracer is not None:

        def begin() -> RRef[Any]:
            with _range_if_profiling(RPCExecMode.REMOTE, func, worker, callee):
                return create(callee.worker, *_prepare(func, args, kwargs), timeout)

        return begun_in_span(name_of(func), callee.name, begin, RRef._get_outcome)
    function, arguments, keywords = _prepare(func, args, kwargs)
    if is_profiling():
        with record_function(_key(RPCExecMode.REMOTE, func, worker, callee)):
            return create(callee.worker, function, arguments, keywords, timeout)
    return create(callee.worker, function, arguments, keywords, timeout)


def _callee(worker: Worker, to: Target, function: object) -> WorkerInfo:
    if not callable(function):
        _check_callable(function)
    return worker.agent.peers.resolve(to)


def _check_callable(function: object) -> None:
    if not callable(function):
        raise TypeError(
            f"function should be callable. This is a {type(function).__name__}: pass the function "
            "itself, without calling it here, and its arguments as args=(…)"
        )


def _prepare(
    function: Function,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    name: str | None = "",
) -> Call:
    """`name`: of what the program calls, where `function` is one of ours that does that for it;
    None where that makes its span itself."""
    arguments = () if args is None else args if type(args) is tuple else _to_arguments(args)
    keywords = _to_keywords(kwargs) if kwargs else None
    if CALL_SPANS.tracer is not None and name is not None:
        call = traced(CALL_SPANS.tracer, (function, arguments, keywords), name)
        function, arguments, keywords = call
    if is_carrying():
        function, arguments, keywords = carried((function, arguments, keywords))
    if _default_pickler is _internal_rpc_pickler:
        return function, arguments, keywords
    run = run_pickled_async if hasattr(function, "_wrapped_async_rpc_function") else run_pickled
    return run, _default_pickler.serialize(PythonUDF(function, arguments, keywords or {})), None


def _arguments(
    args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
    arguments = () if args is None else args if type(args) is tuple else _to_arguments(args)
    return arguments, _to_keywords(kwargs) if kwargs else None


def _to_arguments(args: Sequence[Any]) -> tuple[Any, ...]:
    # Texts, tensors and dicts can be iterated over, and would fall into pieces.
    is_one = isinstance(args, (str, bytes, Tensor, dict))
    if is_one or not hasattr(args, "__iter__"):
        raise TypeError(
            f"args must be a tuple or list of arguments, not {args!r}: a single argument needs a "
            "comma, as in args=(x,)"
        )
    return tuple(args)


def _to_keywords(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if not hasattr(kwargs, "keys"):
        raise TypeError(f"kwargs must be a dict of arguments by their names, not {kwargs!r}")
    return dict(kwargs)


def _key(mode: RPCExecMode, function: Function, caller: Worker, callee: WorkerInfo) -> str:
    return profiling_key(mode, function_name(function), caller.name, callee.name)


def _range_if_profiling(
    mode: RPCExecMode, function: Function, caller: Worker, callee: WorkerInfo
) -> AbstractContextManager[Any]:
    if is_profiling():
        return record_function(_key(mode, function, caller, callee))
    return contextlib.nullcontext()


# ---------------------------------------------------------------- who and how long


def get_worker_info(worker_name: Target | None = None) -> WorkerInfo:
    """Returns name and rank of this worker, or of the one with that name or rank.

    Raises `RpcError` ("could not find destination") for an unknown one.
    """
    worker = current_worker()
    return worker.info if worker_name is None else worker.agent.resolve(worker_name)


def _to_worker_info(to: Target) -> WorkerInfo:
    return get_worker_info(to)


def get_rpc_timeout() -> float:
    """Returns the default timeout of calls, in seconds; 0 means none."""
    return current_worker().agent.default_timeout


# ---------------------------------------------------------------- the end


def shutdown(graceful: bool = True, timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Ends this worker; afterwards `init_rpc` may be called again.

    `graceful`: in a static group, waits until all workers have called this and no call is under way
    anywhere, also none that nobody waits for; then gives up all references. In a dynamic group it
    waits for this worker's own work only, and tells the others. Otherwise it leaves at once.
    `timeout`: seconds for all of it, 0 for no limit; it takes one second more at most.

    The worker is at an end in any case, and a second `shutdown` does nothing. Raises `RuntimeError`
    for what went wrong before: a timeout, which names those who are missing, a worker that died,
    or, where `_ignore_rref_leak` is False, values that others still refer to.
    """
    if leaving.has_left():
        return
    worker = current_worker()
    limit = leaving.until_the_end(worker, timeout)
    try:
        if graceful and not worker.is_ending:  # else an interrupt has struck its last steps
            leaving.keep_to(worker, timeout, partial(_leave, worker, timeout))
    except Exception:
        leaving.answer_what_is_served(worker, timeout)
        raise
    finally:
        worker.is_ending = True
        try:
            leaving.finish(worker, ignore_leaks=not graceful or _ignore_rref_leak, limit=limit)
        except Exception:
            raise
        except BaseException:  # an interrupt: others wait for this one to go
            elsewhere(worker.close_apart, ())
            raise


def _leave(worker: Worker, timeout: float) -> None:
    if not leaving.leaves_together(worker):
        leaving.leave_alone(worker, timeout)
        return
    time_limit = TimeLimit(worker.clock, timeout)
    _wait_all_workers(timeout)
    if timeout:
        _delete_all_user_and_unforked_owner_rrefs(timedelta(seconds=time_limit.remaining))
    else:
        _delete_all_user_and_unforked_owner_rrefs()
    leaving.part(worker, time_limit.remaining)
