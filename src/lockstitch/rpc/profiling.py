"""Calls as ranges of a running profiler, named by the incumbent's keys.

`rpc_async#aten::add(trainer -> ps)` is a call of `torch.add` from worker *trainer* to worker *ps*.
The range begins when the call is made and ends when its answer is there. Without a profiler nothing
happens but one question.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch._C._autograd import _profiler_enabled as is_profiling
from torch.autograd.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.futures import Future

__all__ = ["RPCExecMode", "function_name", "is_profiling", "profiling_key", "record_until_done"]

T = TypeVar("T")


class RPCExecMode(Enum):
    """The ways to call."""

    SYNC = "sync"
    ASYNC = "async"
    ASYNC_JIT = "async_jit"
    REMOTE = "remote"


def profiling_key(mode: RPCExecMode, function_name: str, caller: str, callee: str) -> str:
    """What a range is called."""
    return f"rpc_{mode.value}#{function_name}({caller} -> {callee})"


def function_name(function: Callable[..., Any]) -> str:
    """An operator's name in torch's registry, else the function's qualified name."""
    operator = torch.jit._builtins._find_builtin(function)  # type: ignore[no-untyped-call]
    if operator is not None:
        return cast("str", operator)
    return getattr(function, "__qualname__", type(function).__qualname__)


def record_until_done(key: str, begin: Callable[[], T], future_of: Callable[[T], Future[Any]]) -> T:
    """Returns `begin()`; the range `key` lasts until the future of its result is done."""
    with record_function(key) as record:
        result = begin()
        record._call_end_callbacks_on_future(future_of(result))
    return result
