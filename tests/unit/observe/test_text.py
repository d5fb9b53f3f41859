"""What a job waits for, as people read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstitch.attach.asking import Silence
from lockstitch.attach.values import (
    CodeLine,
    CollectiveWait,
    GroupReport,
    OtherWait,
    PendingCall,
    ProcessReport,
    ServedCall,
    SystemReport,
    WorkerReport,
)
from lockstitch.observe.explanation import explain
from lockstitch.observe.participants import participants_of
from lockstitch.observe.text import duration, explanation_lines, stack_lines
from tests.unit.attach.cards import card, process
from tests.unit.observe.jobs import GATE, caller, idle, job, rank, serving


def test_the_cycle_comes_first_with_the_lines_at_which_the_calls_stand() -> None:
    lines = explanation_lines(
        explain(job(caller(0, 1, of=2), caller(1, 2, of=0), caller(2, 0, of=1), idle(3)))
    )
    assert lines[0].startswith("job train (pid 10): 4 workers, since ")
    assert lines[2] == (
        "3 workers wait for each other in a cycle: worker0 → worker1 → worker2 → worker0"
    )
    assert lines[3:5] == [
        "  worker0 called m:ask on worker1, 5.0 s ago; its main thread waits for the answer",
        "    worker1 serves it at train.py:3 in ask: with lock:",
    ]
    assert "  its main thread sleeps at train.py:9 in main: time.sleep(1000)" in lines


def test_the_missing_rank_is_named_with_the_line_at_which_it_stands() -> None:
    lines = explanation_lines(
        explain(job(*(rank(number, 12, missing=(2,)) for number in range(12))))
    )
    assert lines[2] == (
        "rank 2 is waited for by rank 0, rank 1, rank 3, rank 4, rank 5, rank 6, rank 7, rank 8 "
        "and 3 more, and waits for nobody:"
    )
    assert lines[3] == "  it has not submitted allreduce 'grad'"
    assert lines[4] == "  its main thread sleeps at train.py:9 in main: time.sleep(1000)"
    assert len(lines) < 5 * 12


def test_who_does_not_answer_is_told_with_what_the_system_says() -> None:
    call = PendingCall("worker1", "m:ask", 3.0, 1, 0)
    waiter = process(10, workers=(WorkerReport("worker0", 0, (call,)),))
    system = SystemReport("T", 1.5, 3 << 20, 4, "do_signal_stop")
    silence = Silence(card(11, names=("worker1",)), "it did not answer within 1.7 s", system)
    text = "\n".join(explanation_lines(explain(job(waiter, silent=(silence,)))))
    assert (
        "it did not answer within 1.7 s; it is stopped by a signal in the kernel's "
        "do_signal_stop, has used 1.5 s of processor time and holds 3 MB"
    ) in text
    assert text.count("`lockstitch stacks` looks at it from outside") == 1
    gone = "\n".join(
        explanation_lines(explain(job(waiter, silent=(replace(silence, system=None),))))
    )
    assert "; its process is gone" in gone


def test_a_call_that_has_not_begun_is_said_not_to_have() -> None:
    # The one call that is served wants a lock of the program, which waits for the next one.
    call = PendingCall("worker0", "m:ask", 3.0, 1, 1)
    served = ServedCall("worker1", "m:ask", 3.0, 1, 2, GATE)
    worker = WorkerReport("worker0", 0, (call,), (served,), backlog=2)
    itself = process(10, workers=(worker,), threads=(serving("lock"),))
    lines = explanation_lines(explain(job(itself)))
    assert lines[2] == "worker0 waits for itself:"
    assert lines[4].startswith("    worker0 has not begun it; its main thread sleeps at")
    assert "  2 calls wait for a thread" in lines


def test_what_is_the_same_many_times_is_told_once() -> None:
    first, second = caller(0, 1, of=1).workers[0], caller(1, 0, of=0).workers[0]
    calls = tuple(replace(first.calls[0], number=n, seconds=n / 2) for n in range(200))
    served = tuple(replace(second.serving[0], number=n) for n in range(100))
    parked = replace(served[0], at=None)
    busy = WorkerReport("worker1", 1, (), (*served, parked), backlog=100)
    lines = explanation_lines(
        explain(
            job(
                process(10, workers=(replace(first, calls=calls, serving=()),)),
                process(11, workers=(busy,)),
            )
        )
    )
    assert "  called m:ask on worker1, 0.0 s to 99.5 s (200 times) ago: no answer yet" in lines
    assert (
        "  serves m:ask for worker0, since 5.0 s (100 times): train.py:3 in ask: with lock:"
    ) in lines
    assert lines[2] == "worker1 is waited for by worker0, and waits for nobody:"
    assert lines[3] == (
        "  worker0 called m:ask on worker1, 99.5 s ago; its main thread waits for the answer "
        "(and 198 more such calls)"
    )
    assert "  m:ask, which it serves for worker0, is at train.py:3 in ask: with lock:" in lines
    assert (
        "  100 calls wait for a thread: all that may serve calls (num_worker_threads) do so"
    ) in lines
    assert len(lines) < 40


def test_ranks_that_wait_for_each_others_collectives_have_them_in_another_order() -> None:
    def waits(number: int, name: str) -> ProcessReport:
        wait = CollectiveWait("allreduce", name, True, 3.0, (1 - number,))
        group = GroupReport("hvd", "", number, 2, waits=(wait,))
        return process(10 + number, groups=(group,), rank=str(number))

    lines = explanation_lines(explain(job(waits(0, "a"), waits(1, "b"))))
    assert lines[2].startswith("2 workers wait for each other in a cycle")
    assert lines[3] == (
        "  they have submitted collectives in another order, or one has left one out"
    )


def test_what_the_launcher_waits_for_comes_first() -> None:
    waits = (OtherWait("worker 1 has been started and has not come"),)
    launcher = replace(process(9, kind="launcher"), waits=waits)
    lines = explanation_lines(explain(replace(job(idle(0)), launcher=launcher)))
    assert lines[2:4] == ["the launcher waits: worker 1 has been started and has not come", ""]


def test_other_threads_of_a_culprit_are_told_with_it() -> None:
    culprit = rank(1, 2, missing=(1,))
    (main,) = culprit.threads
    other = replace(main, kind="user", name="loader", ident=2)
    threads = (main, other)
    lines = explanation_lines(
        explain(job(rank(0, 2, missing=(1,)), replace(culprit, threads=threads)))
    )
    assert lines[5] == "  thread 'loader' sleeps at train.py:9 in main: time.sleep(1000)"
    ends = replace(main, at=CodeLine("/python/threading.py", 9, "_shutdown", "lock.acquire()"))
    lines = explanation_lines(explain(job(replace(culprit, threads=(ends, other)))))
    assert "  its program is over, and waits for threads of its own that are no daemons" in lines
    without = replace(culprit, threads=(other,))
    lines = explanation_lines(explain(job(without)))
    assert "  its main thread is in no code of Python's now: the program has ended, say" in lines


def test_nobody_waits() -> None:
    assert "Nobody waits for another one of them for long." in explanation_lines(
        explain(job(idle(0), idle(1)))
    )


def test_stacks_of_the_program_are_shown_and_libraries_by_name() -> None:
    report = idle(0)
    (main,) = report.threads
    library = replace(main, name="worker0-timer", kind="library", ident=2)
    participants = participants_of(job(replace(report, threads=(main, library))))
    lines = stack_lines(participants)
    assert lines[:3] == [
        "worker0 (rank 0, pid 10 on host)",
        "  MainThread sleeps",
        "    train.py:9 in main: time.sleep(1000)",
    ]
    assert lines[3] == "  without code of the program: worker0-timer"
    assert "  worker0-timer sleeps" in stack_lines(participants, everything=True)
    outside = [replace(each, outside="Process 10") for each in participants]
    assert stack_lines(outside)[1:] == ["    Process 10", ""]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (65, "1 min 5 s"), (3600, "1 h 0 min"), (90000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_of_many_calls_that_are_alike_their_number_is_told() -> None:
    call = PendingCall("worker1", "m:ask", 3.0, 1, 0, 16_000, 1.0)
    served = ServedCall("worker0", "m:ask", 3.0, 1, 0, GATE, 16_000, 1.0, (1, 16_000))
    calling = process(10, workers=(WorkerReport("worker0", 0, (call,)),))
    callee = process(11, workers=(WorkerReport("worker1", 1, serving=(served,)),))
    lines = explanation_lines(explain(job(calling, callee)))
    assert "  worker0 called m:ask on worker1, 3.0 s ago (and 15999 more such calls)" in lines
    assert "  called m:ask on worker1, 1.0 s to 3.0 s (16000 times) ago: no answer yet" in lines
    assert (
        "  serves m:ask for worker0, since 1.0 s to 3.0 s (16000 times): train.py:3 in ask: with "
        "lock:"
    ) in lines


def test_those_for_whom_the_same_wait_are_told_together() -> None:
    lines = explanation_lines(
        explain(job(*(rank(n, 12, missing=(1, *range(3, 12))) for n in range(12))))
    )
    assert lines[2] == (
        "rank 1, rank 3, rank 4, rank 5, rank 6, rank 7, rank 8, rank 9 and 2 more are waited for "
        "by rank 0, rank 2, and wait for nobody:"
    )
    assert lines[3:5] == [
        "  they have not submitted allreduce 'grad'",
        "  rank 1: its main thread sleeps at train.py:9 in main: time.sleep(1000)",
    ]
    assert lines[12:14] == ["  … and 2 more", ""]
