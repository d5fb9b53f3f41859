"""Who holds a job up."""

from __future__ import annotations

from dataclasses import replace

from lockstitch.attach.asking import Silence
from lockstitch.attach.values import (
    LaunchedWorker,
    OtherWait,
    PendingCall,
    ServedCall,
    WorkerReport,
)
from lockstitch.observe.explanation import explain
from lockstitch.observe.grouping import Job
from lockstitch.observe.text import explanation_lines
from tests.unit.attach.cards import card, process
from tests.unit.observe.jobs import GATE, caller, idle, job, names, rank, serving


def test_a_cycle_of_three_calls_among_six_workers_is_named_and_nobody_else() -> None:
    told = explain(
        job(
            caller(0, 1, of=2),
            caller(1, 2, of=0),
            caller(2, 0, of=1),
            *map(idle, (3, 4, 5)),
        )
    )
    (circle,) = told.circles
    assert names(circle) == ["worker0", "worker1", "worker2"]
    assert all(wait.what.endswith("its main thread waits for the answer") for wait in circle)
    assert told.culprits == ()


def test_calls_that_are_young_make_no_circle() -> None:
    young = job(caller(0, 1, of=1, seconds=0.01), caller(1, 0, of=0, seconds=0.01))
    assert explain(young).circles == ()
    assert len(explain(young, patience_seconds=0.0).circles) == 1


def test_the_rank_that_left_a_collective_out_is_the_culprit() -> None:
    told = explain(job(*(rank(number, 4, missing=(2,)) for number in range(4))))
    assert told.circles == ()
    (culprit,) = told.culprits
    assert culprit.participant == "rank 2"
    assert [wait.waiter for wait in culprit.waits] == ["rank 0", "rank 1", "rank 3"]


def test_a_circle_may_go_through_calls_and_collectives() -> None:
    # Rank 0 waits for rank 1 in an allreduce, and has a lock; that one waits for an answer of
    # rank 0's worker, which wants that lock.
    first = rank(0, 2, missing=(1,))
    served = ServedCall("trainer", "m:push", 3.0, 1, 2, GATE)
    first = replace(
        first,
        workers=(WorkerReport("ps", 0, serving=(served,)),),
        threads=(*first.threads, serving("lock")),
    )
    call = PendingCall("ps", "m:push", 3.0, 1, 1)
    second = rank(1, 2, missing=(1,))
    (main,) = second.threads
    main = replace(main, stands_in="lockstitch")
    second = replace(second, workers=(WorkerReport("trainer", 1, (call,)),), threads=(main,))
    (circle,) = explain(job(first, second)).circles
    assert [(wait.waiter, wait.kind) for wait in circle] == [
        ("ps", "collective"),
        ("trainer", "call"),
    ]


def test_a_worker_that_is_gone_or_silent_is_a_culprit_by_its_name() -> None:
    call = PendingCall("worker1", "m:ask", 3.0, 1, 0)
    waiter = process(10, workers=(WorkerReport("worker0", 0, (call,)),))
    silence = Silence(card(11, names=("worker1",), rank="1"), "it did not answer", None)
    (culprit,) = explain(job(waiter, silent=(silence,))).culprits
    assert culprit.participant == "worker1"
    (culprit,) = explain(job(waiter)).culprits
    assert culprit.participant == "worker1"


def test_a_rank_that_has_ended_or_not_begun_is_told_as_its_launcher_knows_it() -> None:
    launched = LaunchedWorker(1, 11, "", 1.0, 2.0, "exit code 0")
    launcher = replace(process(9, kind="launcher"), launched=(launched,))
    whole = Job("train", 9, launcher, (rank(0, 2, missing=(1,)),), ())
    told = explain(whole)
    (culprit,) = told.culprits
    assert culprit.participant == "rank 1"
    assert "  exit code 0" in explanation_lines(told)
    assert "rank 1 (pid 11)" in explanation_lines(told)


def test_who_waits_in_shutdown_is_in_no_cycle_with_those_whose_calls_it_serves() -> None:
    # Worker 0 calls worker 1, which serves that, while its program waits for all in `shutdown`.
    rest = OtherWait("meets the others: waits for worker0", ("worker0",), is_apart=True)
    calling = process(
        10, workers=(WorkerReport("worker0", 0, caller(0, 1, of=1).workers[0].calls),)
    )
    serving = WorkerReport("worker1", 1, (), caller(1, 0, of=0).workers[0].serving, waits=(rest,))
    told = explain(job(calling, process(11, workers=(serving,))))
    assert told.circles == ()
    assert [each.participant for each in told.culprits] == ["worker1"]
    # Where nobody calls it, who has not come to `shutdown` holds the others up.
    told = explain(job(idle(0), process(11, workers=(replace(serving, serving=()),))))
    assert [each.participant for each in told.culprits] == ["worker0"]


def test_of_a_call_made_while_serving_it_is_told_what_is_served() -> None:
    told = caller(0, 1, of=2)
    main, _ = told.threads
    served = replace(told, threads=(replace(main, kind="serving", serves="m:put"),))
    (wait,) = explain(job(served)).waits
    assert wait.what.endswith("; m:put, which it serves, waits for the answer")


def test_a_worker_that_calls_itself_is_held_up_by_whom_that_call_waits_for() -> None:
    itself, other = (PendingCall(f"worker{n}", "m:run", 3.0, n, 1 + n) for n in range(2))
    served = ServedCall("worker0", "m:run", 3.0, 0, 2, GATE)
    worker = WorkerReport("worker0", 0, (itself, other), (served,))
    told = explain(job(process(10, workers=(worker,), threads=(serving("lockstitch"),)), idle(1)))
    assert told.circles == ()
    assert [each.participant for each in told.culprits] == ["worker1"]
    # Alone: it wants a lock that only the main thread can have, which waits for it.
    worker = replace(worker, calls=(itself,))
    told = explain(job(process(10, workers=(worker,), threads=(serving("lock"),))))
    assert [names(each) for each in told.circles] == [["worker0"]]
    told = explain(job(process(10, workers=(worker,), threads=(serving("sleep"),))))
    assert told.circles == ()
    assert [each.participant for each in told.culprits] == ["worker0"]


def test_who_comes_to_a_meeting_a_moment_later_holds_nobody_up() -> None:
    come = OtherWait("has come to the meeting of 2 ranks", ranks=(1,), seconds=0.1)
    late = process(11, rank="1", stands_in="")
    told = explain(job(replace(process(10, rank="0"), waits=(come,)), late))
    assert told.culprits == ()
    come = replace(come, seconds=1.0)
    told = explain(job(replace(process(10, rank="0"), waits=(come,)), late))
    assert [each.participant for each in told.culprits] == ["rank 1"]
    assert "  has come to the meeting of 2 ranks, since 1.0 s" in explanation_lines(told)


def test_who_has_not_come_to_the_meeting_and_a_forked_slot_are_waited_for() -> None:
    come = OtherWait("has come to the meeting of 3 ranks, waits for rank 1", ranks=(1, 2))
    slot = OtherWait("waits for forward in slot 1 (process 13)", ("slot 1 (process 13)",))
    waiting = replace(process(10, rank="0"), waits=(come, slot))
    child = process(13, names=("slot 1 (process 13)",))
    told = explain(job(waiting, process(11, rank="1"), child))
    assert {each.participant for each in told.culprits} == {
        "rank 1", "rank 2", "slot 1 (process 13)",
    }  # fmt: skip
    lines = explanation_lines(told)
    assert "  rank 0 has come to the meeting of 3 ranks, waits for rank 1" in lines
    assert "  has come to the meeting of 3 ranks, waits for rank 1" in lines


def test_barriers_and_gradients_are_waited_for_by_name_and_by_rank() -> None:
    waits = (
        OtherWait("meets the others: waits for worker1", ("worker1",)),
        OtherWait("context 3: gradients", ranks=(2,)),
    )
    waiter = process(10, workers=(WorkerReport("worker0", 0, waits=waits),))
    told = explain(job(waiter, idle(1), idle(2)))
    assert {each.participant for each in told.culprits} == {"worker1", "worker2"}
