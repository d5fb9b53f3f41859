"""What the workers of a process tell somebody who looks on."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from lockstitch.attach.sources import SOURCES
from lockstitch.attach.values import Counter, OtherWait, Question
from lockstitch.errors import RpcError
from lockstitch.ids import WorkerId
from lockstitch.runtime import reports
from lockstitch.runtime.pending import Pending
from lockstitch.runtime.reports import (
    _spans_of,
    begin_to_report,
    names_of_workers,
    report_workers,
)
from lockstitch.testing.clock import ManualClock
from tests.unit.runtime.stage import Background, Stage, wait_until

WAITS = Question(waits=True)
PEER = WorkerId(1, 0)
gate = threading.Lock()
released = threading.Event()


def wait_at_gate() -> bool:
    return gate.acquire(timeout=10)


async def awaits() -> None:
    while not released.is_set():
        await asyncio.sleep(0.01)


class Patient:
    def waits(self) -> list[OtherWait]:
        return [OtherWait("for better days", ("peer1",))]

    def counters(self) -> list[Counter]:
        return [Counter("lockstitch_days", 3)]


def test_a_call_is_told_with_the_thread_that_waits_for_its_answer() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        waiting = Background(stage.agent.outgoing.call, PEER, abs, (-1,), None, 0)
        nobody = stage.agent.outgoing.call_async(PEER, max, (1, 2), None, 0)
        wait_until(lambda: any(c.thread for c in report_workers(WAITS)[0].calls))
        clock.advance(5)
        (report,) = report_workers(WAITS)
        calls = {each.function: each for each in report.calls}
        assert calls["builtins:abs"].to == "peer1"
        assert calls["builtins:abs"].seconds == 5.0
        assert calls["builtins:abs"].thread in sys._current_frames()
        assert calls["builtins:max"].thread == 0
        assert calls["builtins:abs"].number != calls["builtins:max"].number
    with pytest.raises(RpcError):
        waiting.result()
    assert nobody.done()


def test_calls_for_which_no_thread_waits_are_told_as_one_by_function() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        futures = []
        for function in (abs, abs, max, abs):
            futures.append(stage.agent.outgoing.call_async(PEER, function, (1,), None, 0))
            clock.advance(1)
        calls = {each.function: each for each in report_workers(WAITS)[0].calls}
        alike = calls["builtins:abs"]
        assert (alike.count, alike.seconds, alike.latest) == (3, 4.0, 1.0)
        assert alike.number == min(each.number for each in calls.values())
        assert calls["builtins:max"].count == 1
    assert all(each.done() for each in futures)


def test_calls_that_hold_no_thread_are_told_as_one_by_caller_and_line() -> None:
    with Stage() as stage:
        caller = stage.caller()
        messages = [caller.call(f"{__name__}:awaits") for _ in range(3)]
        for message in messages:
            caller.send(message)
        wait_until(lambda: _parked() == [3])
        (served,) = report_workers(WAITS)[0].serving
        assert all(served.is_of(served.caller, each.request) for each in messages)
        assert not served.is_of(served.caller, messages[-1].request + 1)
        assert not served.is_of("another", messages[0].request)
        released.set()
        wait_until(lambda: not report_workers(WAITS)[0].serving)


def test_a_thread_that_listens_passes_for_no_call() -> None:
    with Stage() as stage:
        stage.agent.outgoing.call_async(PEER, abs, (-1,), None, 0)
        channel = stage.agent.peers.channel(PEER)
        sleeper = Pending(None, None, None)
        sleeper.is_shared = True
        listening = Background(channel.wait_shared, sleeper)
        wait_until(lambda: channel.outstanding == 2)
        assert [each.function for each in report_workers(WAITS)[0].calls] == ["builtins:abs"]
        sleeper.finish(None, None)
        listening.result()


def _parked() -> list[int]:
    return [each.count for each in report_workers(WAITS)[0].serving if not each.thread and each.at]


def test_numbers_are_told_as_pairs_and_no_more_than_some() -> None:
    assert _spans_of([7, 3, 4, 5, 9]) == (3, 5, 7, 7, 9, 9)
    scattered = _spans_of(range(0, 1000, 2))
    assert len(scattered) == 128
    assert scattered[-1] == 998


def test_a_future_that_a_thread_waits_for_is_told_with_it() -> None:
    with Stage() as stage:
        future = stage.agent.outgoing.call_async(PEER, abs, (-1,), None, 0)
        waiting = Background(future.wait)
        wait_until(lambda: report_workers(WAITS)[0].calls[0].thread)
    with pytest.raises(RpcError):
        waiting.result()


def test_what_is_served_is_told_with_its_line_and_the_callers_number() -> None:
    with gate, Stage() as stage:
        caller = stage.caller()
        message = caller.call(f"{__name__}:wait_at_gate")
        caller.send(message)
        wait_until(lambda: any(s.thread for s in report_workers(WAITS)[0].serving))
        (served,) = report_workers(WAITS)[0].serving
        assert served.function == f"{__name__}:wait_at_gate"
        assert served.number == message.request
        assert served.at is not None
        assert served.at.text == "return gate.acquire(timeout=10)"
        gate.release()
        wait_until(lambda: not report_workers(WAITS)[0].serving)


def test_services_tell_what_they_wait_for_and_what_they_count() -> None:
    with Stage() as stage:
        stage.worker.plug(Patient())
        (report,) = report_workers(WAITS)
        assert report.waits == (OtherWait("for better days", ("peer1",)),)
        assert report.counters == ()
        (report,) = report_workers(Question(counters=True))
        assert report.waits == ()
        counted = {each.name: each for each in report.counters}
        assert counted["lockstitch_days"].value == 3
        before = counted["lockstitch_rpc_calls_total"]
        assert before.kind == "counter"
        stage.agent.outgoing.call_async(PEER, abs, (-1,), None, 0)
        (report,) = report_workers(Question(counters=True))
        counted = {each.name: each for each in report.counters}
        assert counted["lockstitch_rpc_calls_total"].value == before.value + 1
        assert counted["lockstitch_rpc_calls_pending"].value == 1


def test_without_a_question_nothing_is_looked_at() -> None:
    with Stage() as stage:
        stage.agent.outgoing.call_async(PEER, abs, (-1,), None, 0)
        (report,) = report_workers(Question())
        assert (report.calls, report.serving, report.counters) == ((), (), ())
        assert names_of_workers() == [stage.worker.name]


def test_no_stack_is_walked_where_nothing_is_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[object] = []
    monkeypatch.setattr(reports, "frames_of", lambda frame: walked.append(frame) or iter(()))
    with Stage() as stage:
        assert report_workers(WAITS)[0].calls == ()
        assert not walked
        stage.agent.outgoing.call_async(PEER, abs, (-1,), None, 0)
        (call,) = report_workers(WAITS)[0].calls
        assert call.thread == 0
        assert walked


def test_the_workers_are_a_source_once() -> None:
    begin_to_report()
    begin_to_report()
    assert SOURCES.workers.count(report_workers) == 1
    assert SOURCES.names.count(names_of_workers) == 1
