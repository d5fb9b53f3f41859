"""Workers as rows of a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstitch.attach.asking import Silence
from lockstitch.attach.values import Counter, GroupReport, LaunchedWorker, StepReport, WorkerReport
from lockstitch.dashboard.rows import Rates, key_of, row_of, row_of_launched
from lockstitch.observe.participants import participants_of
from tests.unit.attach.cards import SYSTEM, card, process
from tests.unit.observe.jobs import job


def test_rates_are_told_from_the_second_look_on() -> None:
    rates = Rates()
    assert rates.note("a", 10.0, {"calls": 5.0}) == {}
    assert rates.note("a", 12.0, {"calls": 9.0, "new": 3.0}) == {"calls": 2.0}
    assert rates.note("b", 12.0, {"calls": 9.0}) == {}
    assert rates.note("a", 12.0, {"calls": 10.0}) == {}  # no time has passed
    assert rates.note("a", 13.0, {"calls": 1.0}) == {"calls": 0.0}  # it has begun anew
    rates.forget("a")
    rates.forget("a")
    assert rates.note("a", 14.0, {"calls": 1.0}) == {}


def test_a_row_has_what_the_worker_tells_and_nothing_else() -> None:
    counters = (Counter("lockstitch_rpc_calls_total", 4), Counter("lockstitch_rrefs_owned", 2))
    name = "lockstitch_collectives_completed_total"
    groups = tuple(GroupReport("c10d", n, 0, 2, counters=(Counter(name, 3),)) for n in "ab")
    told = process(10, workers=(WorkerReport("ps", 0, counters=counters),), groups=groups, rank="0")
    told = replace(told, step=StepReport(7, 1.0, 2.0, (("loss", 0.5),)))
    (one,) = participants_of(job(told))
    rates = Rates()
    row_of(one, rates, 100.0)
    grown = replace(
        told,
        workers=(WorkerReport("ps", 0, counters=(replace(counters[0], value=10.0), counters[1])),),
        groups=(groups[0], replace(groups[1], counters=(Counter(name, 5),))),
        system=replace(SYSTEM, cpu_seconds=2.5),
    )
    (again,) = participants_of(job(grown))
    row = row_of(again, rates, 102.0)
    assert (row.name, row.rank, row.host, row.pid, row.state) == ("ps", "0", "host", 10, "ok")
    assert row.numbers == {
        "calls": 3.0, "reductions": 1.0, "rrefs_owned": 2.0, "cpu": 0.5, "step": 7.0,
        "memory": float(1 << 20), "threads": 4.0,
    }  # fmt: skip
    assert (row.why, row.main) == ("sleeps", "train.py:7 in main: wait()")


def test_a_worker_keeps_its_key_when_it_falls_silent_or_gets_a_name() -> None:
    before = process(10, rank="1")
    named = process(10, rank="1", workers=(WorkerReport("ps", 1),), names=("ps",))
    silent = Silence(card(10, rank="1", names=("ps",)), "it did not answer", SYSTEM)
    jobs = (job(before), job(named), job(silent=(silent,)))
    (key,) = {key_of(one) for each in jobs for one in participants_of(each)}
    other = process(10, rank="1", born=2)
    assert key_of(participants_of(job(other))[0]) != key
    two = process(10, rank="1", workers=(WorkerReport("a", 1), WorkerReport("b", 2)))
    assert len({key_of(one) for one in participants_of(job(two))}) == 2


def test_a_silent_worker_is_told_with_what_the_system_says() -> None:
    silent = Silence(card(10), "it did not answer within 1.2 s", replace(SYSTEM, state="T"))
    gone = Silence(card(11), "it broke off its answer", None)
    first, second = participants_of(job(silent=(silent, gone)))
    row = row_of(first, Rates(), 5.0)
    assert (row.state, row.since) == ("silent", 5.0)
    assert row.why.startswith("it did not answer within 1.2 s; it is stopped by a signal")
    assert row.numbers == {"memory": float(1 << 20), "threads": 4.0}
    assert row_of(second, Rates(), 5.0).state == "gone"


@pytest.mark.parametrize(
    ("how", "ended_at", "state"),
    [
        ("", None, "starting"),
        ("exit code 0", 3.0, "ended"),
        ("exit code 0 on host b", 3.0, "ended"),
        ("exit code 1", 3.0, "gone"),
        ("killed by SIGKILL", 3.0, "gone"),
    ],
)
def test_who_only_the_launcher_knows(how: str, ended_at: float | None, state: str) -> None:
    row = row_of_launched(LaunchedWorker(2, 20, "", 1.0, ended_at, how))
    assert (row.name, row.state, row.since) == ("worker 2", state, ended_at)
