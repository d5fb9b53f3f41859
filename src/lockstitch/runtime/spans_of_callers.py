"""The caller's side of spans that a program exports (`call_spans`): one for each call, whichever
way it is made."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lockstitch.runtime.call_spans import CALL_SPANS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.futures import Future

T = TypeVar("T")


def within_span(name: str, callee: str, call: Callable[[], T]) -> T:
    """Makes a call of the function of that name and returns its result; in a span, where this
    process has a tracer."""
    tracer = CALL_SPANS.tracer
    if tracer is None:
        return call()
    with tracer.made(name, callee):
        return call()


def begun_in_span(
    name: str, callee: str, begin: Callable[[], T], future_of: Callable[[T], Future[Any]]
) -> T:
    """Begins a call and returns what will have its result; the span ends when the future of that
    completes."""
    tracer = CALL_SPANS.tracer
    if tracer is None:
        return begin()
    with tracer.made(name, callee, stays_open=True) as span:
        begun = begin()
    future_of(begun).add_done_callback(partial(tracer.finish, span))
    return begun


def itself(future: Future[Any]) -> Future[Any]:
    """The future of a call that is begun by one."""
    return future
