"""What a job waits for, as people read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstitch.attach.asking import Silence
from lockstitch.attach.values import PendingCall, SystemReport, WorkerReport
from lockstitch.observe.explanation import explain, participants_of
from lockstitch.observe.text import duration, explanation_lines, stack_lines
from tests.unit.attach.cards import card, process
from tests.unit.observe.jobs import caller, idle, job, rank


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
    gone = "\n".join(
        explanation_lines(explain(job(waiter, silent=(replace(silence, system=None),))))
    )
    assert "; its process is gone" in gone


def test_a_call_that_has_not_begun_is_said_not_to_have() -> None:
    call = PendingCall("worker0", "m:ask", 3.0, 1, 0)
    itself = process(10, workers=(WorkerReport("worker0", 0, (call,), backlog=2),))
    lines = explanation_lines(explain(job(itself)))
    assert lines[2] == "worker0 waits for itself:"
    assert lines[4].startswith("    worker0 has not begun it; its main thread sleeps at")
    assert "  2 calls wait for a thread" in lines


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
