"""Jobs and workers as tables for the terminal: views of what they have told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from lockstitch.attach.system import STATES
from lockstitch.observe.launched import has_ended_well, launched_in_words, unseen_workers
from lockstitch.observe.participants import function_in_words, participants_of
from lockstitch.observe.text import duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockstitch.attach.values import Counter, LaunchedWorker
    from lockstitch.observe.call_rates import Calls
    from lockstitch.observe.grouping import Job
    from lockstitch.observe.participants import Participant

_MOST_LINES = 12
_LEFT = ("JOB", "WORKER", "STATE", "AGE", "FUNCTION", "CALLER", "CALLEE")
_STYLES = {"runs": "green", "begins": "yellow", "ends": "yellow", "does not answer": "red"}


def jobs_table(jobs: Sequence[Job]) -> Table:
    """Returns a table of jobs, a line each."""
    addresses = {
        job.pid: next((each.gateway for each in job.cards if each.gateway), "") for job in jobs
    }
    columns = ["JOB", "PID", "WORKERS", "AGE", "STATE", "STEP"]
    table = _table(*columns, *(["ADDRESS"] if any(addresses.values()) else []))
    for job in jobs:
        step = max((each.step.number for each in job.processes if each.step), default=None)
        table.add_row(
            job.name,
            str(job.pid),
            str(len(job.cards)),
            duration(job.age_seconds),
            Text(job.state, style=_STYLES.get(job.state, "")),
            "" if step is None else str(step),
            *([addresses[job.pid]] if any(addresses.values()) else []),
        )
    return table


def status_table(job: Job) -> Table:
    """Returns a table of a job's workers, a line each: what they do and have."""
    table = _table(
        "WORKER", "RANK", "PID", "CPU", "MEMORY", "THREADS", "FILES", "CALLS/s", "SERVED/s",
        "PENDING", "SERVING", "QUEUED", "OUT/s", "IN/s", "RREFS", "CONTEXTS", "REDUCTIONS/s",
        "STEP", "STATE",
    )  # fmt: skip
    for one in participants_of(job):
        table.add_row(*_cells(one))
    for launched in unseen_workers(job):
        table.add_row(
            f"worker {launched.rank}",
            str(launched.rank),
            str(launched.pid),
            *[""] * 15,
            _state_of(launched),
        )
    return table


def _cells(one: Participant) -> list[str | Text]:
    name, rank, pid = one.name, one.rank, str(one.pid)
    if one.report is None:
        told = None if one.silence is None else one.silence.system
        state = "gone" if told is None else f"no answer; it {STATES.get(told.state, '')}"
        memory = "" if told is None else size(told.memory)
        return [name, rank, pid, "", memory, *[""] * 13, Text(state, style="red")]
    counters, totals = one.counters, one.totals()
    system, step = one.report.system, one.report.step
    main = one.main_thread
    return [
        name,
        rank,
        pid,
        "" if system is None or system.cpu_share is None else f"{100 * system.cpu_share:.0f} %",
        "" if system is None else size(system.memory),
        "" if system is None else str(system.threads),
        "" if system is None or not system.files else str(system.files),
        _rate(counters, "lockstitch_rpc_calls_total"),
        _rate(counters, "lockstitch_rpc_served_total"),
        _sum(totals, "lockstitch_rpc_calls_pending"),
        _sum(totals, "lockstitch_rpc_calls_serving"),
        _sum(totals, "lockstitch_rpc_calls_queued"),
        *_bytes_per_second(one),
        _pair(totals, "lockstitch_rrefs_owned", "lockstitch_rrefs_used"),
        _sum(totals, "lockstitch_autograd_contexts"),
        _rate(counters, "lockstitch_collectives_completed_total"),
        "" if step is None else f"{step.number}",
        "" if main is None else STATES.get(main.state, ""),
    ]


def _bytes_per_second(one: Participant) -> tuple[str, str]:
    """What the values took that a worker sent and received, by calls in both directions."""
    if one.worker is None or not one.worker.recent_seconds:
        return "", ""
    sums = [sum(each.sent for each in one.worker.recent)]
    sums.append(sum(each.received for each in one.worker.recent))
    sent, received = (size(each / one.worker.recent_seconds) for each in sums)
    return sent, received


def calls_table(found: Calls) -> Table | None:
    """Returns a table of the functions that were called, a line each, those first on which most
    time was spent; None where there were no calls."""
    if not found.functions:
        return None
    table = _table("FUNCTION", "CALLS/s", "FAILED", "P50", "P99", "BYTES/s")
    for each in found.functions[:_MOST_LINES]:
        table.add_row(
            function_in_words(each.function),
            f"{each.calls_per_second:.0f}",
            str(each.failed) if each.failed else "",
            milliseconds(each.p50_seconds),
            milliseconds(each.p99_seconds),
            size(each.bytes_per_second),
        )
    return table


def edges_table(found: Calls) -> Table | None:
    """Returns a table of who calls whom, a line each, those first with most calls; None where there
    were no calls."""
    if not found.edges:
        return None
    table = _table("CALLER", "CALLEE", "CALLS/s", "OUT/s", "BACK/s")
    for each in found.edges[:_MOST_LINES]:
        table.add_row(
            each.caller,
            each.callee,
            f"{each.calls_per_second:.0f}",
            size(each.sent_bytes_per_second),
            size(each.received_bytes_per_second),
        )
    return table


def milliseconds(seconds: float) -> str:
    """Returns a duration such as `0.12 ms`, to two digits or so."""
    value = 1e3 * seconds
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def _state_of(launched: LaunchedWorker) -> Text:
    words = launched_in_words(launched)
    if launched.ended_at is None:
        return Text(words, style="" if launched.host else "yellow")
    ago = duration(max(0.0, time.time() - launched.ended_at))
    return Text(f"{words}, {ago} ago", style="" if has_ended_well(launched) else "red")


def size(count: float) -> str:
    """Returns a number of bytes with a unit, such as `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB", "MB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _sum(totals: Mapping[str, float], name: str) -> str:
    return f"{totals[name]:.0f}" if name in totals else ""


def _rate(counters: Sequence[Counter], name: str) -> str:
    found = [
        each.per_second for each in counters if each.name == name and each.per_second is not None
    ]
    return f"{sum(found):.0f}" if found else ""


def _pair(totals: Mapping[str, float], first: str, second: str) -> str:
    return f"{_sum(totals, first)}/{_sum(totals, second)}" if first in totals else ""


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        is_number = column not in _LEFT
        table.add_column(
            column,
            justify="right" if is_number else "left",
            no_wrap=column != "STATE",
            header_style="bold",
        )
    return table
