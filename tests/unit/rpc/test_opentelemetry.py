"""Calls are spans of OpenTelemetry, and a callee's are children of its caller's."""

from __future__ import annotations

import asyncio
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
    from collections.abc import AsyncIterator, Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan


class Spans:
    """What has been exported."""

    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def by(self, kind: SpanKind, name: str) -> ReadableSpan:
        """The only one of that kind for a function, as soon as it is over."""
        (found,) = self.all(kind, name, 1)
        return found

    def all(self, kind: SpanKind, name: str, count: int) -> list[ReadableSpan]:
        """So many of them, as soon as they are over."""
        pause = threading.Event()
        for _ in range(500):
            found = [
                each
                for each in self._exporter.get_finished_spans()
                if each.kind is kind and each.name.endswith(f":{name}")
            ]
            if len(found) >= count:
                assert len(found) == count
                return found
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
        inner = spans.by(SpanKind.CLIENT, "leaf")
        assert is_child(inner, served)
        # Both end with the same future, each on a thread that may have to wait for a processor.
        assert inner.start_time <= served.end_time


def test_an_error_of_a_call_that_nobody_waits_for_is_in_its_span(spans: Spans) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        rpc.rpc_async("worker1", fail).wait()
    assert spans.by(SpanKind.CLIENT, "fail").status.status_code is StatusCode.ERROR


def test_a_coroutine_runs_within_its_span(spans: Spans) -> None:
    async def on_loop() -> bool:
        return trace.get_current_span().is_recording()

    assert rpc.rpc_sync("worker1", on_loop) is True


@pytest.mark.parametrize("way", ["rpc_sync", "rpc_async", "remote"])
def test_references_and_their_methods_are_spans_on_both_sides(spans: Spans, way: str) -> None:
    counter = rpc.remote("worker1", Counter)
    value = getattr(counter, way)().count()
    assert {"rpc_sync": int, "rpc_async": wait, "remote": fetch}[way](value) == 7
    for name in ("Counter", "count"):
        called, served = spans.by(SpanKind.CLIENT, name), spans.by(SpanKind.SERVER, name)
        assert is_child(served, called)
        assert called.end_time >= served.end_time
    assert called.attributes["peer.service"] == "worker1"
    assert served.attributes["rpc.method"] == "count"


def wait(future: torch.futures.Future[int]) -> int:
    return future.wait()


def fetch(rref: rpc.RRef[int]) -> int:
    return rref.to_here()


def test_a_value_that_could_not_be_made_is_an_error_where_that_was_tried(spans: Spans) -> None:
    failed = rpc.remote("worker1", fail)
    with pytest.raises(ValueError, match="on purpose"):
        failed.to_here()
    called, served = spans.by(SpanKind.CLIENT, "fail"), spans.by(SpanKind.SERVER, "fail")
    for span in (called, served):
        assert span.status.status_code is StatusCode.ERROR
        assert "ValueError: on purpose" in span.status.description
    assert is_child(served, called)


def test_a_group_of_values_that_could_not_be_made_is_as_many_errors(spans: Spans) -> None:
    rpc.group().remote(fail)
    for span in spans.all(SpanKind.CLIENT, "fail", 2):
        assert span.status.status_code is StatusCode.ERROR


def test_each_call_of_a_group_is_a_span(spans: Spans) -> None:
    everybody = rpc.group()
    with spans.provider.get_tracer("test").start_as_current_span("m:program"):
        assert everybody.call(leaf) == [3, 3]
        counters = everybody.remote(Counter)
        assert counters.call(Counter.count) == [7, 7]
    program = spans.by(SpanKind.INTERNAL, "program")
    for name in ("leaf", "Counter", "Counter.count"):
        called = spans.all(SpanKind.CLIENT, name, 2)
        assert {each.attributes["peer.service"] for each in called} == {"worker0", "worker1"}
        assert all(is_child(each, program) for each in called)
        served = spans.all(SpanKind.SERVER, name, 2)
        assert sum(is_child(s, c) for s in served for c in called) == 2


def yields() -> Iterator[int]:
    yield rpc.rpc_sync("worker0", leaf)
    yield 4


async def yields_later() -> AsyncIterator[int]:
    yield await rpc.rpc_async("worker0", leaf)
    yield 4


def yields_once_and_fails() -> Iterator[int]:
    yield rpc.rpc_sync("worker0", leaf)
    fail()


@pytest.mark.parametrize("generator", [yields, yields_later, yields_once_and_fails])
def test_a_stream_is_a_span_as_long_as_its_generator_and_the_parent_of_its_calls(
    spans: Spans, generator: Callable[[], Iterator[int]]
) -> None:
    items = []
    with contextlib.suppress(ValueError), rpc.stream("worker1", generator) as stream:
        items = [next(stream), *stream]
    called = spans.by(SpanKind.CLIENT, generator.__name__)
    served = spans.by(SpanKind.SERVER, generator.__name__)
    inner = spans.by(SpanKind.CLIENT, "leaf")
    assert is_child(served, called)
    assert is_child(inner, served)
    assert inner.end_time <= served.end_time
    is_failed = served.status.status_code is StatusCode.ERROR
    assert is_failed == (generator is yields_once_and_fails)
    assert items == ([] if is_failed else [3, 4])


async def nested_later(name: str) -> int:
    with trace.get_tracer("test").start_as_current_span(name):
        await asyncio.sleep(0.01)
        return await rpc.rpc_async("worker0", of_later, (name,))


def of_later(_name: str) -> str:
    return trace.get_current_span().get_span_context().trace_id


def test_coroutines_that_run_at_once_keep_their_own_parents(spans: Spans) -> None:
    tracer, traces, futures = spans.provider.get_tracer("test"), [], []
    for name in "ab":
        with tracer.start_as_current_span(f"m:{name}") as span:
            traces.append(span.get_span_context().trace_id)
            futures.append(rpc.rpc_async("worker1", nested_later, (name,)))
    assert [each.wait() for each in futures] == traces
    served = spans.all(SpanKind.SERVER, "nested_later", 2)
    for inner in spans.all(SpanKind.CLIENT, "of_later", 2):
        assert sum(is_in(inner, each) for each in served) == 1


def is_in(span: ReadableSpan, other: ReadableSpan) -> bool:
    same = span.context.trace_id == other.context.trace_id
    return same and other.start_time <= span.start_time <= span.end_time <= other.end_time


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
