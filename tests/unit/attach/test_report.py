"""An answer holds what the sources tell by then."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from lockstitch.attach.report import REPORTS, make_report
from lockstitch.attach.sources import Sources
from lockstitch.attach.values import (
    CallTraffic,
    Counter,
    GroupReport,
    LaunchedWorker,
    Question,
    ServedCall,
    StepReport,
    WorkerReport,
)
from tests.unit.attach.cards import CARD

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_what_sources_tell_comes_back_as_it_was_through_json() -> None:
    sources = Sources()
    me = threading.main_thread().ident or 0
    served = ServedCall("trainer", "m:f", 1.5, 7, me, None)
    sources.workers.append(lambda _question: [WorkerReport("ps", 1, serving=(served,))])
    sources.groups.append(lambda _question: [GroupReport("hvd", "", 0, 2)])
    sources.launched = lambda: [LaunchedWorker(0, 11, "", 1.0)]
    sources.step = lambda: StepReport(3, 1.0, 2.0, (("loss", 0.5),))
    report = make_report(CARD, sources, Question(waits=True, threads=True))
    assert report.gaps == ()
    assert report.workers[0].serving == (served,)
    assert report.step is not None
    main = report.threads[0]
    assert (main.kind, main.serves) == ("serving", "m:f")  # not just a main thread
    assert REPORTS.decode(REPORTS.encode(report)) == report


def test_threads_are_left_out_unless_asked_for() -> None:
    assert make_report(CARD, Sources(), Question()).threads == ()


def test_a_launcher_does_not_stand_still_to_see_how_fast_it_works() -> None:
    question = Question(counters=True, rate_seconds=60.0)
    assert make_report(replace(CARD, kind="launcher"), Sources(), question).system is not None


def test_a_source_that_stands_still_is_named_and_the_others_are_heard() -> None:
    sources, leave = Sources(), threading.Event()

    def stand_still(_question: Question) -> Sequence[WorkerReport]:
        leave.wait(60)
        return []

    sources.workers += [stand_still, lambda _question: [WorkerReport("ps", 1)]]
    sources.groups.append(lambda _question: [GroupReport("hvd", "", 0, 2)])
    try:
        report = make_report(CARD, sources, Question(seconds=0.05))
    finally:
        leave.set()
    (gap,) = [each for each in report.gaps if "stand_still" in each]
    assert "did not tell within 0.05 s" in gap


def test_a_source_that_fails_is_named() -> None:
    def fail(_question: Question) -> Sequence[WorkerReport]:
        raise KeyError("w")

    sources = Sources()
    sources.workers.append(fail)
    (gap,) = make_report(CARD, sources, Question()).gaps
    assert "could not tell: KeyError('w')" in gap


def test_counters_tell_how_fast_they_grow_where_that_is_asked() -> None:
    sources, values = Sources(), itertools.count(0, 10)

    def count(_question: Question) -> Sequence[WorkerReport]:
        told = (Counter("calls_total", next(values), "counter"), Counter("open", 3))
        return [WorkerReport("ps", 1, counters=told)]

    sources.workers.append(count)
    report = make_report(CARD, sources, Question(counters=True, rate_seconds=0.01))
    calls, number = report.workers[0].counters
    assert calls.value == 10
    assert calls.per_second is not None
    assert 0 < calls.per_second <= 10 / 0.01
    assert number.per_second is None
    assert report.system is not None
    assert report.system.cpu_share is not None


def counted(count: int) -> CallTraffic:
    return CallTraffic("made", "m:f", "ps", count, 0, count * 0.5, 10 * count, 0, (count,))


def test_calls_that_ended_meanwhile_are_told_apart() -> None:
    sources, values = Sources(), itertools.count(4, 3)
    sources.workers.append(
        lambda _question: [WorkerReport("w", 1, traffic=(counted(next(values)),))]
    )
    (worker,) = make_report(CARD, sources, Question(counters=True, rate_seconds=0.01)).workers
    assert worker.traffic == (counted(7),)
    assert worker.recent == (counted(3),)
    assert worker.recent_seconds >= 0.01


def test_without_an_earlier_count_no_calls_count_as_recent() -> None:
    sources, looks = Sources(), itertools.count()

    def tell(_question: Question) -> Sequence[WorkerReport]:
        if next(looks) == 0:
            raise KeyError("it did not tell the first time")
        return [WorkerReport("w", 1, traffic=(counted(7),))]

    sources.workers.append(tell)
    (worker,) = make_report(CARD, sources, Question(counters=True, rate_seconds=0.01)).workers
    assert (worker.recent, worker.recent_seconds) == ((), 0.0)
