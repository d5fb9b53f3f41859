"""Exports calls as spans of OpenTelemetry, through the program's own tracer provider.

Needs `opentelemetry-api` (`pip install 'lockstitch[opentelemetry]'`); the program brings the SDK
and its exporters. The caller's context goes along with each call, as W3C's `traceparent` and
`baggage` or whatever propagators the program has set, so that a span of the callee, and what it
makes within, is a child of the caller's.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace

from lockstitch import __version__
from lockstitch.errors import text_of
from lockstitch.runtime.call_spans import CALL_SPANS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.futures import Future

    from lockstitch.runtime.call_spans import Carrier


def instrument(tracer_provider: trace.TracerProvider | None = None) -> None:
    """Has the calls of this process traced: those that it makes as spans of kind CLIENT, from the
    call to its result, and those that it serves as spans of kind SERVER.

    To be called on each worker, before or after `init_rpc`. `tracer_provider`: None means that of
    the program (`opentelemetry.trace.get_tracer_provider`). Where the callee is not instrumented,
    or has no OpenTelemetry, the call runs there without a span.
    """
    CALL_SPANS.tracer = _Tracer(trace.get_tracer("lockstitch", __version__, tracer_provider))


def uninstrument() -> None:
    """Has calls traced no more; what is under way is ended as it was begun."""
    CALL_SPANS.tracer = None


class _Tracer:
    """A `runtime.call_spans.CallTracer`."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextlib.contextmanager
    def made(self, function: str, callee: str, *, stays_open: bool = False) -> Iterator[trace.Span]:
        about = {**_about(function), "peer.service": callee}
        span = self._tracer.start_span(function, kind=trace.SpanKind.CLIENT, attributes=about)
        with _current(span, stays_open=stays_open):
            yield span

    @contextlib.contextmanager
    def served(
        self, function: str, carrier: Carrier, *, stays_open: bool = False
    ) -> Iterator[trace.Span]:
        token = contexts.attach(propagate.extract(carrier))
        try:
            span = self._tracer.start_span(
                function, kind=trace.SpanKind.SERVER, attributes=_about(function)
            )
            with _current(span, stays_open=stays_open):
                yield span
        finally:
            contexts.detach(token)

    def carrier(self) -> Carrier:
        carrier: Carrier = {}
        propagate.inject(carrier)
        return carrier

    def finish(self, span: trace.Span, future: Future[Any]) -> None:
        try:
            future.wait()
        except BaseException as error:  # noqa: BLE001 - raised where the user waits
            _end(span, error)
        else:
            span.end()


def _about(function: str) -> dict[str, str]:
    """The attributes that conventions name."""
    service, _, method = function.rpartition(":")
    return {"rpc.system": "lockstitch", "rpc.service": service, "rpc.method": method}


@contextlib.contextmanager
def _current(span: trace.Span, *, stays_open: bool) -> Iterator[None]:
    """Within, the span is the current one; then it is ended."""
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        _end(span, error)
        raise
    if not stays_open:
        span.end()


def _end(span: trace.Span, error: BaseException) -> None:
    span.record_exception(error)
    said = f"{type(error).__name__}: {text_of(error)}"
    span.set_status(trace.Status(trace.StatusCode.ERROR, said))
    span.end()
