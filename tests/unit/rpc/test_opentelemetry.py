"""Calls are spans of OpenTelemetry, and a callee's are children of its caller's."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch import rpc
from lockstitch.rpc import api
from lockstitch.rpc.functions import async_execution
from lockstitch.runtime.call_spans import CALL_SPANS
from lockstitch.testing import LocalCluster

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

import itertools

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from lockstitch.rpc.opentelemetry import instrument, uninstrument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan


class Spans:
    """What has been exported."""

    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def by(self, kind: SpanKind, name: str) -> ReadableSpan:
        """The only one of that kind for a function, as soon as it is over."""
        pause = threading.Event()
        for _ in range(500):
            found = [
                each
                for each in self._exporter.get_finished_spans()
                if each.kind is kind and each.name.endswith(f":{name}")
            ]
            if found:
                assert len(found) == 1
                return found[0]
            pause.wait(0.01)
        raise AssertionError(f"no span of {name}")


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    instrument(spans.provider)
    try:
        with LocalCluster(2) as cluster, cluster["worker0"].active():
            yield spans
    finally:
        uninstrument()


def nested() -> int:
    return rpc.rpc_sync("worker0", leaf)


def leaf() -> int:
    return 3


def fail() -> None:
    raise ValueError("on purpose")


@async_execution
def deferred() -> torch.futures.Future[int]:
    return rpc.rpc_async("worker0", leaf)


class Counter:
    def count(self) -> int:
        return 7


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert child.parent is not None
    same = child.context.trace_id == parent.context.trace_id
    return same and child.parent.span_id == parent.context.span_id


def test_each_span_is_a_child_of_its_callers(spans: Spans) -> None:
    with spans.provider.get_tracer("test").start_as_current_span("m:program"):
        assert rpc.rpc_sync("worker1", nested) == 3
    chain = [
        spans.by(SpanKind.INTERNAL, "program"),
        spans.by(SpanKind.CLIENT, "nested"),
        spans.by(SpanKind.SERVER, "nested"),
        spans.by(SpanKind.CLIENT, "leaf"),
        spans.by(SpanKind.SERVER, "leaf"),
    ]
    assert all(is_child(child, parent) for parent, child in itertools.pairwise(chain))
    called, served = chain[1:3]
    assert called.start_time <= served.start_time <= served.end_time <= called.end_time
    assert dict(called.attributes) == {
        "rpc.system": "lockstitch",
        "rpc.service": __name__,
        "rpc.method": "nested",
        "peer.service": "worker1",
    }


def test_what_a_function_raises_is_in_both_spans_and_is_raised(spans: Spans) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        rpc.rpc_sync("worker1", fail)
    for kind in (SpanKind.CLIENT, SpanKind.SERVER):
        span = spans.by(kind, "fail")
        assert span.status.status_code is StatusCode.ERROR
        assert "on purpose" in span.status.description
        assert span.events[0].name == "exception"


@pytest.mark.parametrize("function", [deferred, leaf], ids=["future", "plain"])
def test_the_span_of_a_call_that_nobody_waits_for_ends_with_its_future(
    spans: Spans, function
) -> None:
    assert rpc.rpc_async("worker1", function).wait() == 3
    called = spans.by(SpanKind.CLIENT, function.__name__)
    served = spans.by(SpanKind.SERVER, function.__name__)
    assert is_child(served, called)
    if function is deferred:
        assert is_child(spans.by(SpanKind.CLIENT, "leaf"), served)
        assert spans.by(SpanKind.CLIENT, "leaf").end_time <= served.end_time


def test_an_error_of_a_call_that_nobody_waits_for_is_in_its_span(spans: Spans) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        rpc.rpc_async("worker1", fail).wait()
    assert spans.by(SpanKind.CLIENT, "fail").status.status_code is StatusCode.ERROR


def test_a_coroutine_runs_within_its_span(spans: Spans) -> None:
    async def on_loop() -> bool:
        return trace.get_current_span().is_recording()

    assert rpc.rpc_sync("worker1", on_loop) is True


def test_references_and_their_methods_are_served_in_spans(spans: Spans) -> None:
    counter = rpc.remote("worker1", Counter)
    assert counter.rpc_sync().count() == 7
    assert spans.by(SpanKind.SERVER, "Counter").kind is SpanKind.SERVER
    assert spans.by(SpanKind.SERVER, "count").attributes["rpc.method"] == "count"


def test_modes_that_are_carried_leave_the_name_as_it_is(spans: Spans) -> None:
    with rpc.carry_modes(), torch.no_grad():
        assert rpc.rpc_sync("worker1", torch.is_grad_enabled) is False
    spans.by(SpanKind.SERVER, "is_grad_enabled")


@pytest.mark.parametrize("waits", [True, False], ids=["sync", "async"])
def test_a_profiler_sees_traced_calls_as_ever(spans: Spans, waits: bool, monkeypatch) -> None:
    ranges: list[str] = []
    monkeypatch.setattr(api, "is_profiling", lambda: True)
    monkeypatch.setattr(
        api, "record_function", lambda name: ranges.append(name) or contextlib.nullcontext()
    )
    if waits:
        rpc.rpc_sync("worker1", leaf)
    else:
        rpc.rpc_async("worker1", leaf).wait()
    (name,) = ranges
    assert name.startswith("rpc_sync" if waits else "rpc_async")


def test_nothing_is_traced_after_the_end() -> None:
    instrument(Spans().provider)
    uninstrument()
    assert CALL_SPANS.tracer is None
