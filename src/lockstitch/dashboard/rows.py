"""A job's workers as rows of a table, and how fast their counters grow from look to look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from lockstitch.attach.system import STATES
from lockstitch.dashboard.values import Row
from lockstitch.observe.launched import has_ended_well, launched_in_words
from lockstitch.observe.text import where_it_stands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.attach.values import LaunchedWorker
    from lockstitch.observe.participants import Participant

RATES: Final[Mapping[str, str]] = {
    "calls": "lockstitch_rpc_calls_total",
    "served": "lockstitch_rpc_served_total",
    "reductions": "lockstitch_collectives_completed_total",
    "reduced_bytes": "lockstitch_collectives_bytes_total",
}
"""Columns that tell how fast a counter grows."""
LEVELS: Final[Mapping[str, str]] = {
    "pending": "lockstitch_rpc_calls_pending",
    "serving": "lockstitch_rpc_calls_serving",
    "queued": "lockstitch_rpc_calls_queued",
    "rrefs_owned": "lockstitch_rrefs_owned",
    "rrefs_used": "lockstitch_rrefs_used",
    "contexts": "lockstitch_autograd_contexts",
}
"""Columns that tell a number as it is."""


class Rates:
    """How fast counters of workers grow, between the two latest looks at each of them."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, dict[str, float]]] = {}

    def __repr__(self) -> str:
        return f"<Rates of {len(self._before)} workers>"

    def note(self, key: str, now: float, totals: Mapping[str, float]) -> dict[str, float]:
        """Takes in the counters of a worker, read at `now` (seconds); returns how fast each has
        grown since the look before, nothing at the first. One that has begun anew is at zero."""
        before_at, before = self._before.get(key, (now, {}))
        self._before[key] = (now, dict(totals))
        seconds = now - before_at
        if seconds <= 0:
            return {}
        return {
            name: max(0.0, total - before[name]) / seconds
            for name, total in totals.items()
            if name in before
        }

    def forget(self, key: str) -> None:
        """A worker is gone."""
        self._before.pop(key, None)


def key_of(one: Participant) -> str:
    """Returns what tells a worker apart from all others that the job ever has, also where it does
    not answer."""
    report, silence = one.report, one.silence
    card = report.card if report is not None else silence.card if silence is not None else None
    which = ""
    if report is not None and one.worker is not None and one.worker in report.workers[1:]:
        which = one.worker.name  # a process with several: a test's, say
    return f"{card.rank}/{card.pid}/{card.born}/{which}" if card is not None else one.name


def row_of(one: Participant, rates: Rates, now: float) -> Row:
    """Returns the row of a worker that was asked at `now`."""
    key = key_of(one)
    if one.report is None:
        told = None if one.silence is None else one.silence.system
        numbers = {} if told is None else {"memory": float(told.memory), "threads": told.threads}
        return Row(
            key, one.name, one.rank, one.host, one.pid, "gone" if told is None else "silent",
            numbers, where_it_stands(one), now,
        )  # fmt: skip
    totals = _totals(one)
    growth = rates.note(key, now, totals)
    numbers = {column: growth[name] for column, name in RATES.items() if name in growth}
    numbers |= {column: totals[name] for column, name in LEVELS.items() if name in totals}
    system, step, main = one.report.system, one.report.step, one.main_thread
    if system is not None:
        numbers |= {"memory": float(system.memory), "threads": float(system.threads)}
        if system.files:
            numbers["files"] = float(system.files)
        if "cpu" in growth:
            numbers["cpu"] = growth["cpu"]
    if step is not None:
        numbers["step"] = float(step.number)
    state = "" if main is None else STATES.get(main.state, "")
    where = "" if main is None or main.at is None else f"{main.at}: {main.at.text}".rstrip(": ")
    return Row(key, one.name, one.rank, one.report.host, one.pid, "ok", numbers, state, main=where)


def row_of_launched(launched: LaunchedWorker) -> Row:
    """Returns the row of a worker that only its launcher knows: it has not begun, or has ended."""
    state: Literal["starting", "ended", "gone"] = "starting"
    if launched.ended_at is not None:
        state = "ended" if has_ended_well(launched) else "gone"
    why = launched_in_words(launched)
    name, rank = f"worker {launched.rank}", str(launched.rank)
    key = f"{launched.host}/{launched.pid}"
    return Row(key, name, rank, launched.host, launched.pid, state, {}, why, launched.ended_at)


def _totals(one: Participant) -> dict[str, float]:
    totals = one.totals()
    if one.report is not None and one.report.system is not None:
        totals["cpu"] = one.report.system.cpu_seconds
    return totals
