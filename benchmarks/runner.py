"""Carries the plan out: contenders take turns, within the time that they have."""

from __future__ import annotations

import fnmatch
import time
from typing import TYPE_CHECKING

from benchmarks.libraries import LOCKSTITCH, TORCH
from benchmarks.member import Measure
from benchmarks.plan import PAIR, Comparison, Pace, Section
from benchmarks.result import Figure, Row, Samples, compare
from benchmarks.worlds import CaseError, Worlds, hogs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IDLE_SHARE_AT_MOST = 0.002
"""Share of a core that a worker may use while nobody calls it."""
IDLE_THREADS_AT_MOST = 12
_AT_REST = "at rest"
_IDLE_ROWS = ("CPU of an idle worker", "threads of an idle worker")


def is_chosen(only: str, section: str, name: str) -> bool:
    """Whether a row is meant by `--only`: a part of its name or its section's, or a glob."""
    if not only:
        return True
    if any(sign in only for sign in "*?["):
        return fnmatch.fnmatchcase(name, only) or fnmatch.fnmatchcase(section, only)
    return only in name or only in section


def needs_programs(only: str, sections: Sequence[Section]) -> bool:
    """Whether one of the rows that are asked for runs an example: their imports take seconds."""
    return any(
        comparison.setting.examples and is_chosen(only, section.title, comparison.name)
        for section in sections
        for comparison in section.comparisons
    )


class Runner:
    """Measures rows one after the other."""

    def __init__(self, worlds: Worlds, pace: Pace, only: str = "") -> None:
        self._worlds = worlds
        self._pace = pace
        self._only = only
        self._end = time.monotonic() + pace.total_seconds

    def rows(self, sections: Sequence[Section]) -> Iterator[Row]:
        """Those of the plan that were asked for, in its order."""
        for section in sections:
            for comparison in section.comparisons:
                if is_chosen(self._only, section.title, comparison.name):
                    rounds = self._pace.curve_rounds if section.is_curve else self._pace.rounds
                    yield compare(section.title, comparison, self._measure(comparison, rounds))

    def is_late(self) -> bool:
        """Whether the time for the whole run is over."""
        return time.monotonic() > self._end

    def _measure(self, comparison: Comparison, rounds: int) -> dict[str, Samples]:
        """All contenders in turns; who fails is left out of the further rounds."""
        results = {role: Samples() for role, _, _ in comparison.contenders}
        if self.is_late():
            return {role: Samples(note="no time") for role in results}
        deadline = time.monotonic() + self._pace.case_seconds
        with hogs(comparison.hogs):
            for number in range(rounds):
                if number and time.monotonic() > deadline:
                    break
                for role, contender, prepare in comparison.contenders:
                    if not results[role].error:
                        order = Measure(
                            prepare, contender.backward_options, self._pace.turn_seconds
                        )
                        self._take_turn(comparison, contender.library, order, results[role])
        return results

    def _take_turn(
        self, comparison: Comparison, library: str, order: Measure, samples: Samples
    ) -> None:
        patience = comparison.patience_seconds or self._pace.patience_seconds
        try:
            world = self._worlds.of(library, comparison.setting)
            turn: Samples = world.carry_out(order, order.seconds + patience)
        except CaseError as error:
            samples.error = f"{comparison.name}, {library}: {error}"
            self._worlds.give_up(library)  # it may be stuck for ever
            return
        samples.seconds += turn.seconds
        if samples.first is None:
            samples.first = turn.first

    def idle_rows(self) -> Iterator[Row]:
        """What a worker costs while nobody calls it."""
        if self.is_late() or not any(is_chosen(self._only, _AT_REST, name) for name in _IDLE_ROWS):
            return
        seconds = self._pace.idle_seconds
        (our_share, our_threads), (their_share, their_threads) = (
            self._worlds.of(library, PAIR).idle(seconds) for library in (LOCKSTITCH, TORCH)
        )
        yield Row(
            _AT_REST,
            _IDLE_ROWS[0],
            "share",
            ours=Figure(our_share),
            other=Figure(their_share),
            ratio=our_share / their_share if their_share else None,
            target=f"≤ {100 * IDLE_SHARE_AT_MOST:g} %",
            is_met=our_share <= IDLE_SHARE_AT_MOST,
        )
        yield Row(
            _AT_REST,
            _IDLE_ROWS[1],
            "",
            ours=Figure(our_threads),
            other=Figure(their_threads),
            ratio=our_threads / their_threads if their_threads else None,
            target=f"≤ {IDLE_THREADS_AT_MOST}",
            is_met=our_threads <= IDLE_THREADS_AT_MOST,
        )
