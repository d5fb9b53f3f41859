"""Rates of calls by edge and by function, from what callers have counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstitch.attach.traffic import Traffic
from lockstitch.attach.values import WorkerReport
from lockstitch.observe.call_rates import calls
from tests.unit.attach.cards import process
from tests.unit.observe.jobs import job


def counted(*durations: float, function: str = "m:f") -> Traffic:
    traffic = Traffic()
    for seconds in durations:
        traffic.series(("call", function, "w", "ps")).note(seconds, 100, 50, has_failed=seconds > 5)
        traffic.series(("serve", function, "w", "ps")).note(seconds, 100, 50, has_failed=False)
    return traffic


def looked(traffic: Traffic, at: float, *, recent_seconds: float = 0.0):
    told = traffic.of("w")
    recent = told if recent_seconds else ()
    worker = WorkerReport("w", 0, traffic=told, recent=recent, recent_seconds=recent_seconds)
    return job(replace(process(10, workers=(worker,)), told_at=at))


def test_what_ended_while_the_workers_were_looked_at() -> None:
    found = calls(looked(counted(0.1, 0.1, 8.0), 0.0, recent_seconds=0.5))
    (edge,), (function,) = found.edges, found.functions
    assert found.seconds == 0.5
    assert (edge.caller, edge.callee, edge.calls, edge.calls_per_second) == ("w", "ps", 3, 6.0)
    assert (edge.sent_bytes_per_second, edge.received_bytes_per_second) == (600.0, 300.0)
    assert (function.function, function.calls, function.failed) == ("m:f", 3, 1)
    assert function.bytes_per_second == 900.0
    assert function.p50_seconds == pytest.approx(0.1, rel=0.26)
    assert function.p99_seconds == pytest.approx(8.0, rel=0.26)
    assert function.total_seconds == pytest.approx(8.2)


def test_what_ended_since_an_earlier_look() -> None:
    traffic = counted(0.1, 0.1)
    before = looked(traffic, 10.0)
    traffic.series(("call", "m:g", "w", "ps")).note(1.0, 8, 4, has_failed=False)
    traffic.series(("call", "m:f", "w", "ps")).note(1.0, 8, 4, has_failed=False)
    found = calls(looked(traffic, 12.0), before)
    assert found.seconds == 2.0
    assert found.edges[0].calls_per_second == 1.0
    assert {each.function: each.calls for each in found.functions} == {"m:f": 1, "m:g": 1}


def test_a_worker_that_was_not_there_before_is_left_out_for_now() -> None:
    assert calls(looked(counted(0.1), 1.0), job()).edges == ()


def test_nothing_is_counted_before_somebody_looks() -> None:
    assert calls(looked(Traffic(), 1.0, recent_seconds=0.5)).functions == ()
