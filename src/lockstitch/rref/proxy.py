"""`rref.rpc_sync().method(...)`: a method of the value, run where the value is.

The attribute is looked up on the *type* of the value, as the interpreter does for operators. The
owner does that for `rpc_sync` and `rpc_async`, which so cost one message each. `remote` must say at
once whether there is such a method, hence asks for the type first (once in a reference's life). A
timeout covers everything.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from lockstitch.runtime.call_spans import CALL_SPANS, traced
from lockstitch.runtime.carried_modes import carried, is_carrying
from lockstitch.runtime.invocation import Deferred
from lockstitch.runtime.spans_of_callers import begun_in_span, itself, within_span
from lockstitch.torch_internals.calls import PlainFuture
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerInfo
    from lockstitch.rref.home import Home
    from lockstitch.runtime.packing import WhatToCall


class CallKind(Enum):
    """How a proxy calls: `rpc_sync`, `rpc_async` or `remote`."""

    SYNC = "rpc_sync"
    ASYNC = "rpc_async"
    REMOTE = "remote"


class Reference(Protocol):
    """A reference, as far as it is needed here; an `RRef` is one."""

    _home: Home[Any]

    def owner(self) -> WorkerInfo:
        """The worker on which the value lives."""
        ...

    def local_value(self) -> Any:
        """The value itself, on its owner."""
        ...

    def _get_type(self, timeout: float = ..., blocking: bool = ...) -> Any:
        """The type of the value."""
        ...


class RRefProxy:
    """Stands for the value of a reference: its methods can be called, one way or another."""

    def __init__(self, rref: Reference, kind: CallKind, timeout: float) -> None:
        self._rref = rref
        self._kind = kind
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<RRefProxy of {self._rref!r} · {self._kind.value} · timeout {self._timeout}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        rref, timeout = self._rref, self._timeout
        owner, span = rref.owner(), f"RRef:{name}"
        agent = rref._home.worker.agent

        def call() -> WhatToCall:
            made: WhatToCall = (run_method, (rref, name, *args), kwargs)
            if CALL_SPANS.tracer is not None:
                made = traced(CALL_SPANS.tracer, made, span)
            return carried(made) if is_carrying() else made

        if self._kind is CallKind.SYNC:
            if CALL_SPANS.tracer is None:
                return agent.outgoing.call(owner.worker, *call(), timeout)
            run = partial(agent.outgoing.call, timeout=timeout)
            return within_span(span, owner.name, lambda: run(owner.worker, *call()))
        if self._kind is CallKind.ASYNC:
            run = partial(agent.outgoing.call_async, timeout=timeout)
            return begun_in_span(span, owner.name, lambda: run(owner.worker, *call()), itself)
        started = agent.clock.now()
        value_type = rref._get_type(timeout, blocking=True)
        getattr(value_type, name)
        if timeout > 0:
            timeout = max(timeout - (agent.clock.now() - started), 1e-3)
        create = partial(rref._home.create_remote, timeout=timeout)
        return begun_in_span(
            span,
            owner.name,
            lambda: create(owner.worker, *call()),
            lambda made: made._get_outcome(),
        )


def _as_called(_rref: Reference, name: str, /, *args: Any, **kwargs: Any) -> Any:
    return f"the method {name}", args, kwargs


@needed
def run_method(rref: Reference, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Runs the method `name` of the value, on its owner, and waits for its future where the method
    is marked by `async_execution`."""
    value = rref.local_value()
    allowed = rref._home.worker.agent.allowed
    if allowed is not None:
        allowed.check_method(value, name)
    found = getattr(type(value), name)
    method = getattr(value, name)
    if not callable(method):
        raise TypeError(
            f"{type(method).__name__!r} object is not callable: {name!r} of "
            f"{type(value).__qualname__} is no method but a value. A function that takes the "
            "reference reads it where it is: rref.local_value()." + name
        )
    result = method(*args, **kwargs)
    if not hasattr(found, "_wrapped_async_rpc_function"):
        return result
    if not isinstance(result, PlainFuture):
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future "
            f"object, but {name} returned {result!r} of type {type(result)}"
        )
    return Deferred(result)  # type: ignore[arg-type]


run_method.as_called = _as_called  # type: ignore[attr-defined]
