"""Spans of calls that a program exports, and the caller's context carried to the callee.

A call that is traced is a call of `run_traced`, which brings what the tracer has said of the
caller's span, and runs the function in a span of its own, as a child of that. What spans are is the
tracer's matter (`lockstitch.rpc.opentelemetry`); without one, calls do not come here.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from lockstitch.runtime.carried_modes import as_called, found_here
from lockstitch.runtime.functions import name_of, qualified_name
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager

    from torch.futures import Future

    from lockstitch.runtime.packing import WhatToCall

Carrier = dict[str, str]
"""What goes along with a call, such as W3C's `traceparent`."""


class CallTracer(Protocol):
    """Who makes the spans. Within the context of a span, it is the current one; it is ended after
    that, unless it `stays_open` and nothing was raised, or by `finish`."""

    def made(
        self, function: str, callee: str, *, stays_open: bool = False
    ) -> AbstractContextManager[Any]:
        """The context of a span of a call that is made."""
        ...

    def served(
        self, function: str, carrier: Carrier, *, stays_open: bool = False
    ) -> AbstractContextManager[Any]:
        """The context of a span of a call that is served."""
        ...

    def carrier(self) -> Carrier:
        """Returns what tells a callee of the current span."""
        ...

    def finish(self, span: Any, future: Future[Any]) -> None:
        """Ends a span whose call's future is completed."""
        ...


class CallSpans:
    """Which tracer a process has. A process has one, `CALL_SPANS`."""

    def __init__(self) -> None:
        self.tracer: CallTracer | None = None


CALL_SPANS: Final = CallSpans()


def traced(tracer: CallTracer, call: WhatToCall, name: str = "") -> WhatToCall:
    """A call that runs this one in a span, a child of the current one. `name`: of the function,
    where it has none of its own."""
    function, args, kwargs = call
    is_deferred = hasattr(function, "_wrapped_async_rpc_function")
    run = run_traced_async if is_deferred else run_traced
    about = (name or name_of(function), tracer.carrier())
    return run, (about, qualified_name(function) or function, args, kwargs), None


@needed
def run_traced(
    about: tuple[str, Carrier],
    function: str | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
) -> Any:
    """Runs the function in a span, if this process has a tracer. The span of one that returns a
    future of its result ends with that."""
    callee, tracer = found_here(function), CALL_SPANS.tracer
    run = partial(callee, *args, **(kwargs or {}))
    if tracer is None:
        return run()
    if inspect.iscoroutinefunction(callee):
        return _run_to_its_end(tracer, about, run())
    is_deferred = hasattr(callee, "_wrapped_async_rpc_function")
    with tracer.served(*about, stays_open=is_deferred) as span:
        value = run()
        if is_deferred:
            value.add_done_callback(partial(tracer.finish, span))
    return value


async def _run_to_its_end(
    tracer: CallTracer, about: tuple[str, Carrier], coroutine: Coroutine[Any, Any, Any]
) -> Any:
    with tracer.served(*about):
        return await coroutine


@needed
def run_traced_async(*call: Any) -> Any:
    """Does what `run_traced` does, for functions that return a future of their result."""
    return run_traced(*call)


run_traced_async._wrapped_async_rpc_function = run_traced_async  # type: ignore[attr-defined]
run_traced.as_called = as_called  # type: ignore[attr-defined]
run_traced_async.as_called = as_called  # type: ignore[attr-defined]
