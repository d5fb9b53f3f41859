"""The caller's side of spans that a program exports."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.runtime.call_spans import CALL_SPANS
from lockstitch.runtime.spans_of_callers import begun_in_span, itself, within_span

if TYPE_CHECKING:
    from collections.abc import Iterator


class Tracer:
    """Notes what becomes of spans."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def made(self, function: str, callee: str, *, stays_open: bool = False) -> Iterator[str]:
        self.events.append(f"{function} on {callee} begins")
        yield "span"
        self.events.append("stays open" if stays_open else "ends")

    def finish(self, span: str, future: torch.futures.Future[Any]) -> None:
        self.events.append(f"{span} ends with {future.value()}")


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Tracer:
    tracer = Tracer()
    monkeypatch.setattr(CALL_SPANS, "tracer", tracer)
    return tracer


def test_a_span_is_around_the_call(tracer: Tracer) -> None:
    assert within_span("m:f", "ps", lambda: tracer.events.append("call")) is None
    assert tracer.events == ["m:f on ps begins", "call", "ends"]


def test_a_span_ends_with_the_future_of_what_was_begun(tracer: Tracer) -> None:
    future: torch.futures.Future[int] = torch.futures.Future()
    begun = begun_in_span("m:f", "ps", lambda: [future], lambda it: it[0])
    assert begun == [future]
    assert tracer.events == ["m:f on ps begins", "stays open"]
    future.set_result(3)
    assert tracer.events[2:] == ["span ends with 3"]
    assert itself(future) is future


def test_without_a_tracer_there_is_nothing_but_the_call() -> None:
    assert CALL_SPANS.tracer is None
    assert within_span("m:f", "ps", lambda: 3) == 3
    assert begun_in_span("m:f", "ps", lambda: 4, lambda _: pytest.fail("asked for")) == 4
