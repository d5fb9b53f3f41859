"""Jobs and workers as tables."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from lockstitch.attach.asking import Silence
from lockstitch.attach.traffic import Traffic
from lockstitch.attach.values import Counter, LaunchedWorker, StepReport, SystemReport, WorkerReport
from lockstitch.observe.call_rates import calls
from lockstitch.observe.grouping import Job
from lockstitch.observe.tables import (
    calls_table,
    edges_table,
    jobs_table,
    milliseconds,
    size,
    status_table,
)
from tests.unit.attach.cards import SYSTEM, card, process
from tests.unit.observe.jobs import idle, job, rank


def shown(table: object) -> list[list[str]]:
    """The cells of each line that have something in them."""
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    return [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore


def test_a_line_for_each_job() -> None:
    step = StepReport(120, 1.0, 2.0, ())
    runs = replace(job(replace(idle(0), step=step), idle(1)), name="digits")
    silent = (Silence(card(12), "", None),)
    _head, first, second = shown(jobs_table([runs, job(idle(0), silent=silent)]))
    assert (first[0], first[1], first[2], first[-2:]) == ("digits", "10", "2", ["runs", "120"])
    assert second[-3:] == ["does", "not", "answer"]


def test_a_line_for_each_worker_with_its_counters() -> None:
    counters = (
        Counter("lockstitch_rpc_calls_total", 500, "counter", 25.0),
        Counter("lockstitch_rpc_calls_pending", 3),
        Counter("lockstitch_rrefs_owned", 7),
        Counter("lockstitch_rrefs_used", 2),
    )
    report = process(10, workers=(WorkerReport("ps", 0, counters=counters),), rank="0")
    report = replace(report, system=replace(SYSTEM, cpu_share=0.5))
    head, line, hvd = shown(status_table(job(report, rank(1, 2, missing=()))))
    assert head[0] == "WORKER"
    assert line == ["ps", "0", "10", "50", "%", "1", "MB", "4", "25", "3", "7/2", "sleeps"]
    assert hvd[:3] == ["rank", "1", "1"]


def test_who_does_not_answer_has_ended_or_has_not_begun_is_marked() -> None:
    silent = (Silence(card(12, rank="1"), "", SystemReport("T", 1.0, 1 << 20, 1)),)
    launched = (
        LaunchedWorker(0, 10, "", 1.0),
        LaunchedWorker(2, 13, "", 1.0, 2.0, "killed by SIGKILL"),
        LaunchedWorker(3, 14, "", 1.0),
        LaunchedWorker(4, 4711, "beta", 1.0),
    )
    launcher = replace(process(5, kind="launcher"), launched=launched)
    whole = Job("train", 5, launcher, (idle(0),), silent)
    text = "\n".join(" ".join(line) for line in shown(status_table(whole)))
    assert "rank 1 1 12 1 MB no answer; it is stopped by a signal" in text
    assert "worker 2 2 13 killed by SIGKILL, " in text
    assert "worker 3 3 14 cannot be asked: it has not begun, or is about to end" in text
    assert "worker 4 4 4711 runs on host beta: ask there" in text
    gone = (replace(silent[0], system=None),)
    assert shown(status_table(replace(whole, launcher=None, silent=gone)))[-1][-1] == "gone"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "2 kB"), (3e8, "300 MB"), (1.5e9, "1.5 GB"),
     (2e12, "2.0 TB")],
)  # fmt: skip
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


def called() -> WorkerReport:
    traffic = Traffic()
    for _ in range(5):
        traffic.series(("call", "m:f", "w", "ps")).note(0.02, 1000, 500, has_failed=True)
    recent = traffic.of("w")
    return WorkerReport("w", 0, traffic=recent, recent=recent, recent_seconds=0.5)


def test_calls_by_function_and_by_pair_and_bytes_of_each_worker() -> None:
    whole = job(process(10, workers=(called(),), rank="0"))
    found = calls(whole)
    assert shown(calls_table(found))[1] == "m:f 10 5 18 ms 20 ms 15 kB".split()
    assert shown(edges_table(found))[1] == "w ps 10 10 kB 5 kB".split()
    assert " ".join(shown(status_table(whole))[1]).endswith("10 kB 5 kB sleeps")


def test_without_calls_there_is_no_table_of_them() -> None:
    nothing = calls(job(idle(0)))
    assert calls_table(nothing) is None
    assert edges_table(nothing) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00012, "0.12 ms"), (0.0012, "1.2 ms"), (0.25, "250 ms")]
)
def test_milliseconds(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text
