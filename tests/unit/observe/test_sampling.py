"""Who holds up a job that is only slow."""

from __future__ import annotations

from lockstitch.attach.values import CodeLine, PendingCall, WorkerReport
from lockstitch.observe.explanation import Explanation, explain
from lockstitch.observe.sampling import Holdup, holdup_lines, holdups
from tests.unit.attach.cards import process
from tests.unit.observe.jobs import GATE, SLEEP, caller, idle, job, rank


def look(*missing: int) -> Explanation:
    return explain(job(*(rank(n, 3, missing=missing) for n in range(3))), patience_seconds=0.0)


def test_the_slow_rank_is_the_one_that_is_waited_for_in_most_looks() -> None:
    found = holdups([look(2), look(2), look(1, 2), explain(job(idle(0)))])
    assert [(each.participant, each.share) for each in found] == [
        ("rank 2", 0.75),
        ("rank 1", 0.25),
    ]
    assert found[0] == Holdup(
        "rank 2", 0.75, ("rank 0", "rank 1"), ((f"{SLEEP}: {SLEEP.text}", 1.0),)
    )
    assert holdup_lines(found, 4, 2.0) == [
        "looked 4 times in 2.0 s:",
        "  rank 2 was waited for in 75%, by rank 0, rank 1",
        f"    100% of these at {SLEEP}: {SLEEP.text}",
        "  rank 1 was waited for in 25%, by rank 0",
        f"    100% of these at {SLEEP}: {SLEEP.text}",
    ]


def test_of_a_callee_the_line_is_told_at_which_it_serves() -> None:
    call = PendingCall("worker1", "m:ask", 0.01, 7, 1)
    calling = process(10, workers=(WorkerReport("worker0", 0, (call,)),))
    served = caller(1, 0, of=0).workers[0].serving
    serving = process(
        11, workers=(WorkerReport("worker1", 1, (), served),), at=CodeLine("a", 1, "b")
    )
    gone = explain(job(calling), patience_seconds=0.0)
    here = explain(job(calling, serving), patience_seconds=0.0)
    (told,) = holdups([here, here, gone])
    assert told.places == ((f"{GATE}: {GATE.text}", 2 / 3), ("", 1 / 3))


def test_nobody_is_waited_for() -> None:
    found = holdups([explain(job(idle(0)))])
    assert holdup_lines(found, 1, 0.1)[1:] == ["  nobody waited for another one of them"]
