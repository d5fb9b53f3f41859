"""Calls as ranges of a running profiler, named by the incumbent's keys.

`rpc_async#aten::add(trainer -> ps)` is a call of `torch.add` from worker *trainer* to worker *ps*.
The range begins and ends with the function that makes the call: that of `rpc_sync` lasts until the
answer is there, those of `rpc_async` and `remote` until the request has left. Without a profiler
nothing happens but one question.

No range may outlive the function. A profiler that stops frees its records, and a range that ends
later writes into memory that is no longer its own: torch's `_call_end_callbacks_on_future`, which
lets a range last until an answer comes, does so whenever the answer comes after the profiler.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from lockstitch.torch_internals.autograd import is_profiling
from lockstitch.torch_internals.calls import find_operator

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RPCExecMode", "function_name", "is_profiling", "profiling_key"]


class RPCExecMode(Enum):
    """The ways to call a function on another worker."""

    SYNC = "sync"
    ASYNC = "async"
    ASYNC_JIT = "async_jit"
    REMOTE = "remote"


def profiling_key(mode: RPCExecMode, function_name: str, caller: str, callee: str) -> str:
    """Returns the name of a call's range."""
    return f"rpc_{mode.value}#{function_name}({caller} -> {callee})"


def function_name(function: Callable[..., Any]) -> str:
    """Returns an operator's name in torch's registry, else the function's qualified name."""
    operator = find_operator(function)
    if operator is not None:
        return operator
    return getattr(function, "__qualname__", type(function).__qualname__)
