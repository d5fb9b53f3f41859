"""What becomes of a job, look by look: its workers, also those that are gone, and what charts show.

No I/O: what a look has found goes in, with its time.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lockstitch.dashboard.rows import Rates, row_of, row_of_launched
from lockstitch.dashboard.values import Edge, Point, Row, State
from lockstitch.observe.call_rates import Calls, calls
from lockstitch.observe.explanation import explain
from lockstitch.observe.participants import participants_of
from lockstitch.observe.text import paragraphs, unreached_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lockstitch.attach.values import LaunchedWorker
    from lockstitch.observe.grouping import Job
    from lockstitch.observe.participants import Participant

POINTS: Final = 600
"""So many looks the charts reach back."""
_MOST_LINES: Final = 8
"""Of more workers than these a chart shows the greatest, the middle and the least value."""
_MOST_GONE: Final = 64
"""So many workers that are gone are kept, the latest."""
_VALUE: Final = "value: "
"""What a chart of a value of `observe.step` is called, before its name."""
_MOST_FUNCTIONS: Final = 40
"""So many functions are told, those that took most time."""
_FROM_ROWS: Final = ("calls", "served", "cpu", "memory", "rrefs_owned", "reduced_bytes")


class History:
    """See the module. Before the first look there is no `state`."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS)
        self._state: State | None = None
        self._rates = Rates()
        self._job: Job | None = None
        self._seen: dict[str, Row] = {}
        self._gone: dict[str, Row] = {}

    def __repr__(self) -> str:
        return f"<History of {len(self.points)} looks>"

    @property
    def state(self) -> State | None:
        """What the last look has found."""
        return self._state

    def note(self, job: Job, now: float) -> State:
        """Takes in what a look has found that was taken at `now`, in seconds since the epoch."""
        participants = participants_of(job)
        rows = [row_of(each, self._rates, now) for each in participants]
        launched = () if job.launcher is None else job.launcher.launched
        self._note_gone(rows, launched, now)
        ended = calls(job, self._job or job)
        self._job = job
        values = _values(participants, rows, now)
        values |= _latencies(ended)
        self.points.append(Point(now, values))
        self._state = State(
            name=job.name,
            pid=job.pid,
            at=now,
            started_at=now - job.age_seconds,
            job_state=job.state,
            rows=(*self._seen.values(), *self._unseen(launched), *self._gone.values()),
            edges=_edges(participants, ended),
            functions=ended.functions[:_MOST_FUNCTIONS],
            waits=tuple(paragraphs(explain(job))),
            contexts=tuple(sorted(_contexts(participants))),
            unreached=tuple(unreached_lines(job)),
        )
        return self._state

    def note_end(self, now: float) -> State | None:
        """The job has ended. Returns its last state; None where there never was one."""
        if self._state is None:
            return None
        why = "it ended with the job"
        rows = tuple(
            replace(each, state="ended", why=why, since=now, main="")
            if each.state in ("ok", "silent", "starting")
            else each
            for each in self._state.rows
        )
        self._state = replace(self._state, at=now, rows=rows, ended_at=now, job_state="has ended")
        return self._state

    def _note_gone(
        self, rows: Sequence[Row], launched: Iterable[LaunchedWorker], now: float
    ) -> None:
        """Keeps those that were there and are no more, or that a look found gone; and learns from
        the launcher how they have ended."""
        here = {each.key: each for each in rows if each.state != "gone"}
        for key, row in self._seen.items():
            if key not in here:
                self._rates.forget(key)
                self._gone[key] = replace(
                    row, state="gone", why="its process is gone", since=now, main="", numbers={}
                )
        self._seen = here
        for row in rows:
            if row.state == "gone":
                self._gone.setdefault(row.key, row)
            else:
                self._gone.pop(row.key, None)
        ends = [each for each in launched if each.ended_at is not None]
        for key, row in self._gone.items():
            its = next((each for each in ends if _is_of(each, row)), None)
            if its is not None:
                end = row_of_launched(its)
                self._gone[key] = replace(row, state=end.state, why=end.why, since=end.since)
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _unseen(self, launched: Iterable[LaunchedWorker]) -> list[Row]:
        known = [*self._seen.values(), *self._gone.values()]
        unseen = [each for each in launched if not any(_is_of(each, row) for row in known)]
        return [row_of_launched(each) for each in unseen[-_MOST_GONE:]]


def _is_of(launched: LaunchedWorker, row: Row) -> bool:
    """Whether a row is that of a worker of a launcher, which knows the process that it has started:
    the program may run in another."""
    return launched.pid == row.pid or (bool(launched.host) and str(launched.rank) == row.rank)


def _edges(participants: Sequence[Participant], ended: Calls) -> tuple[Edge, ...]:
    names = {each.worker.name: each.name for each in participants if each.worker is not None}
    known: dict[tuple[str, str], Edge] = {}
    for each in ended.edges:
        caller, callee = names.get(each.caller, each.caller), names.get(each.callee, each.callee)
        moved = each.sent_bytes_per_second + each.received_bytes_per_second
        known[caller, callee] = Edge(caller, callee, each.calls_per_second, moved, 0)
    for one in participants:
        for call in () if one.worker is None else one.worker.calls:
            callee = names.get(call.to, call.to)
            edge = known.get((one.name, callee)) or Edge(one.name, callee, 0.0, 0.0, 0)
            known[one.name, callee] = replace(edge, pending=edge.pending + 1)
    return tuple(known.values())


def _latencies(ended: Calls) -> dict[str, dict[str, float]]:
    """How long calls took, by the functions that took most time."""
    shown = [each for each in ended.functions if each.calls][:_MOST_LINES]
    if not shown:
        return {}
    return {
        "p50": {each.function: each.p50_seconds for each in shown},
        "p99": {each.function: each.p99_seconds for each in shown},
    }


def _contexts(participants: Sequence[Participant]) -> set[int]:
    workers = [each.worker for each in participants if each.worker is not None]
    return {context.id for worker in workers for context in worker.contexts}


def _values(
    participants: Sequence[Participant], rows: Sequence[Row], now: float
) -> dict[str, dict[str, float]]:
    """The values of the charts at a look."""
    charts: dict[str, dict[str, float]] = {}
    for one, row in zip(participants, rows, strict=True):
        told = {name: row.numbers[name] for name in _FROM_ROWS if name in row.numbers}
        step = None if one.report is None else one.report.step
        if step is not None:
            if step.per_second > 0:
                told["step_seconds"] = max(1 / step.per_second, now - step.at)
            told |= {f"{_VALUE}{name}": value for name, value in step.values}
        for chart, value in told.items():
            charts.setdefault(chart, {})[one.name] = value
    return {chart: _lines(values) for chart, values in charts.items()}


def _lines(values: Mapping[str, float]) -> dict[str, float]:
    if len(values) <= _MOST_LINES:
        return dict(values)
    ordered = sorted(values.values())
    return {
        "greatest": ordered[-1], "middle": statistics.median(ordered), "least": ordered[0]
    }  # fmt: skip
