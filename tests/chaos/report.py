"""What a run of chaos has shown: promises kept and broken, and how long deaths went unnoticed."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.load import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.chaos.load import Seen

SURVIVED = ("disconnected", "cut off for a moment")
"""Mishaps after which nobody may be given up."""
CUT_OFF = ("cut off", "cut off, and back later")
"""Mishaps after which the victim lives, alone."""

PAUSE_SECONDS = 5.0

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "chaos.md"


@dataclass
class Findings:
    """Over all rounds."""

    command: str
    heartbeat_seconds: float
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    delays: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from each mishap to when each survivor knew, by kind."""
    slowest_error_seconds: float = 0.0
    paused: int = 0
    """Rounds during which the machine stood still, which show nothing."""
    left_out: str = ""
    """Which kinds could not be played, and why."""
    broken: list[str] = field(default_factory=list)
    """Promises that were not kept."""

    def add(
        self, kind: str, victim: str, moment: float, seen: Iterable[Seen], logs: dict[str, Path]
    ) -> None:
        """Takes in what the survivors of a round have seen, and what all have logged."""
        seen = list(seen)
        self.rounds += 1
        if max(each.longest_pause for each in seen) > PAUSE_SECONDS:
            self.paused += 1  # nobody could keep to any time
            return
        self.faults[kind] += 1
        served = {name: Counter(RECORD.iter_unpack(log.read_bytes())) for name, log in logs.items()}
        for name, counts in served.items():
            twice = [record for record, count in counts.items() if count > 1]
            if twice:
                self.broken.append(f"{kind}: {name} ran {len(twice)} calls twice")
        for each in seen:
            self._add_seen(kind, victim, moment, each, served)

    def _add_seen(
        self,
        kind: str,
        victim: str,
        moment: float,
        seen: Seen,
        served: dict[str, Counter[tuple[int, int]]],
    ) -> None:
        rank = int(seen.name.removeprefix("worker"))
        self.calls += seen.calls
        self.errors += seen.errors
        self.slowest_error_seconds = max(self.slowest_error_seconds, seen.slowest_error_seconds)
        lost = [to for to, number in seen.acknowledged if not served[to][rank, number]]
        if lost:
            self.broken.append(f"{kind}: {len(lost)} calls of {seen.name} answered but not run")
        for to, number in seen.unanswered:
            self.unanswered["had run" if served[to][rank, number] else "had not run"] += 1
        left = {what: count for what, count in seen.left.items() if count}
        if left:
            self.broken.append(f"{kind}: {seen.name} still holds {left}")
        deaths = dict(seen.losses)
        if seen.name == victim and kind in CUT_OFF:
            others = {f"worker{each}" for each in range(len(served))} - {victim}
            self.delays.setdefault(kind, []).extend(when - moment for when in deaths.values())
            if others - deaths.keys():
                unnoticed = sorted(others - deaths.keys())
                self.broken.append(f"{kind}: {victim} never knew that it lost {unnoticed}")
            return
        known = deaths.pop(victim, None)
        if kind not in SURVIVED:
            if known is None:
                self.broken.append(f"{kind}: {seen.name} never knew of {victim}")
            else:
                self.delays.setdefault(kind, []).append(known - moment)
        elif known is not None:
            cause = seen.causes[victim]
            self.broken.append(f"{kind}: {seen.name} gave {victim} up, which lived: {cause}")
        if deaths and seen.name != victim:
            self.broken.append(f"{kind}: {seen.name} gave up {seen.causes}, which lived")

    # ------------------------------------------------------------ the page

    def page(self) -> str:
        """The report as a page."""
        answered = sum(self.calls.values())
        lines = [
            "# Chaos",
            "",
            "Workers at work, and one of them is killed, stopped, disconnected or cut off at a "
            "random moment: what happens to the others? This page is the report of a run of "
            f"`{self.command}`; `tests/chaos` says what each worker does.",
            "",
            f"{self.rounds - self.paused} rounds, each with a world of four processes on one "
            "host, under a load of calls with small and large tensors, references that are passed "
            "on, and backward passes, none of which has a timeout. `heartbeat_timeout` is "
            f"{self.heartbeat_seconds:g} s. Where one is cut off, each process is in a network "
            "namespace of its own, they speak TCP under a secret, and the victim's link passes "
            "nothing on: for a moment, until it has been given up, or for good.",
            "",
            *([] if not self.left_out else [f"Left out: {self.left_out}.", ""]),
            "## What was promised",
            "",
            "- no call that was answered is lost, and no function is run twice;",
            "- whoever lives is not given up, and whoever is gone is known to be by every other;",
            "- nothing is left of the dead: no value, reference, context or call.",
            "",
            "Broken promises: " + ("none." if not self.broken else ""),
            *[f"- {line}" for line in self.broken],
            "",
            "## What happened",
            "",
            _table("mishap", "times", self.faults),
            _table("load that ended well", "times", self.calls),
            _table("error raised instead", "times", self.errors),
            _table("calls without an answer", "times", self.unanswered),
            f"In all {answered:,} pieces of work ended well. The longest that anything took to "
            f"end in an error was {self.slowest_error_seconds:.2f} s.",
            "",
            "## How long a death went unnoticed",
            "",
            "From the mishap to the moment at which each survivor knew, in milliseconds; one that "
            "is cut off is a survivor too, who loses the others.",
            "",
            "| mishap | survivors | fastest | median | 90 % | slowest |",
            "|---|---|---|---|---|---|",
            *[_distribution(kind, delays) for kind, delays in sorted(self.delays.items())],
            "",
        ]
        return "\n".join(lines)


def _table(what: str, count: str, rows: Counter[str]) -> str:
    lines = [f"| {what} | {count} |", "|---|---|"]
    lines += [f"| {name} | {number:,} |" for name, number in rows.most_common()]
    return "\n".join([*lines, ""])


def _distribution(kind: str, delays: list[float]) -> str:
    ordered = sorted(1000 * each for each in delays)
    ninetieth = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    figures = (ordered[0], statistics.median(ordered), ninetieth, ordered[-1])
    return f"| {kind} | {len(ordered)} | " + " | ".join(f"{each:,.0f}" for each in figures) + " |"
