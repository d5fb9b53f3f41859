"""Which activities of a job are blocked, and by which others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lockstitch.attach.values import PendingCall, ServedCall, ThreadReport, WorkerReport
from lockstitch.observe.explanation import explain
from lockstitch.observe.text import explanation_lines
from tests.unit.attach.cards import process
from tests.unit.observe.jobs import GATE, caller, idle, job, names, rank, serving

if TYPE_CHECKING:
    from lockstitch.attach.values import ProcessReport
    from lockstitch.observe.explanation import Explanation
    from tests.unit.observe.jobs import Standing


def crossing(*stand_in: Standing) -> Explanation:
    """Two workers call each other; what they serve stands in that."""
    return explain(
        job(
            *(
                replace(told, threads=(told.threads[0], serving(each)))
                for told, each in zip(
                    (caller(0, 1, of=1), caller(1, 0, of=0)), stand_in, strict=True
                )
            )
        )
    )


def test_calls_that_are_worked_on_make_no_circle_though_they_cross() -> None:
    told = crossing("sleep", "")
    assert told.circles == ()
    assert {each.participant for each in told.culprits} == {"worker0", "worker1"}
    assert all(each.is_waiting for each in told.culprits)
    text = explanation_lines(told)
    assert "worker0 is waited for by worker1, and does not wait for others in that:" in text
    # One of them is enough: what wants a lock of the other's program gets it then.
    told = crossing("lock", "sleep")
    assert told.circles == ()
    assert [each.participant for each in told.culprits] == ["worker1"]
    assert [names(each) for each in crossing("lock", "lock").circles] == [["worker0", "worker1"]]


@pytest.mark.parametrize("seconds", [0.01, 5.0])
def test_who_calls_again_and_again_goes_on_whatever_else_is_to_be_answered(seconds: float) -> None:
    # The main threads wait for nothing that is known, so for what nobody else waits for.
    def waiting(number: int, *more: PendingCall) -> ProcessReport:
        told = caller(number, 1 - number, of=1 - number)
        (worker,) = told.workers
        calls = (replace(worker.calls[0], thread=0), *more)
        return replace(told, workers=(replace(worker, calls=calls),))

    assert len(explain(job(waiting(0), waiting(1))).circles) == 1
    again = PendingCall("worker2", "m:again", seconds, 8, 1)
    assert explain(job(waiting(0, again), waiting(1), idle(2))).circles == ()


def test_who_may_have_a_lock_goes_on_unless_it_only_sleeps_now_and_then() -> None:
    first, second = caller(0, 1, of=1), caller(1, 0, of=0)
    own = ThreadReport("own", 3, 3, "user", "S", GATE, stands_in="")
    works = replace(first, threads=(*first.threads, own))
    told = explain(job(works, second))
    assert told.circles == ()
    assert [each.participant for each in told.culprits] == ["worker0"]
    sleeps = replace(first, threads=(*first.threads, replace(own, stands_in="sleep")))
    assert len(explain(job(sleeps, second)).circles) == 1


def test_calls_in_a_queue_wait_for_those_that_have_the_threads() -> None:
    # Each serves one call at a time, which calls the other one, where that is not begun.
    def worker(number: int, *, has_queue: bool = True) -> ProcessReport:
        call = PendingCall(f"worker{1 - number}", "m:inner", 3.0, 9, 2)
        served = ServedCall("worker2", "m:outer", 3.0, number, 2, GATE)
        told = WorkerReport(f"worker{number}", number, (call,), (served,), backlog=int(has_queue))
        return process(10 + number, workers=(told,), threads=(serving("lockstitch"),))

    assert [names(each) for each in explain(job(worker(0), worker(1))).circles] == [
        ["worker0", "worker1"]
    ]
    assert explain(job(worker(0), worker(1, has_queue=False))).circles == ()


def test_of_a_call_that_holds_no_thread_the_answers_count_that_no_thread_waits_for() -> None:
    def worker(number: int, target: int) -> ProcessReport:
        call = PendingCall(f"worker{target}", "m:awaits", 3.0, 7, 0)
        served = ServedCall(f"worker{1 - number}", "m:awaits", 3.0, 7, 0, GATE)
        told = WorkerReport(f"worker{number}", number, (call,), (served,))
        return process(10 + number, workers=(told,))

    assert len(explain(job(worker(0, 1), worker(1, 0))).circles) == 1
    told = explain(job(worker(0, 1), worker(1, 2), idle(2)))
    assert told.circles == ()
    assert [each.participant for each in told.culprits] == ["worker2"]


def test_a_collective_is_blocked_by_each_that_it_waits_for() -> None:
    # Ranks 0 and 1 are in different reductions; rank 2 is merely late for both.
    first, second = rank(0, 3, missing=(1, 2)), rank(1, 3, missing=(0, 2))
    told = explain(job(first, second, rank(2, 3, missing=(2,))))
    assert [names(each) for each in told.circles] == [["rank 0", "rank 1"]]
    assert [each.participant for each in told.culprits] == ["rank 2"]
