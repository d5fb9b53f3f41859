"""From samples to a row: medians, their ratio, and whether a promise was kept."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.plan import Comparison


@dataclass
class Samples:
    """Seconds per operation as one contender did it, or why it could not."""

    seconds: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds and not self.error else None


@dataclass(frozen=True)
class Figure:
    """One side of a row, in the row's unit; quartiles where there were samples. Without a value,
    `note` or `error` says why."""

    value: float | None = None
    quartiles: tuple[float, float] | None = None
    samples: int = 0
    note: str = ""
    error: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the table. Units: "s", "/s", "share" (of a core) or "" (a count)."""

    section: str
    name: str
    unit: str
    ours: Figure
    other: Figure = field(default_factory=Figure)
    ratio: float | None = None
    target: str = ""
    is_met: bool | None = None


def compare(section: str, comparison: Comparison, ours: Samples, other: Samples | None) -> Row:
    """The row of a comparison. Targets bound a ratio of times from above, of rates from below."""
    one = _figure(ours, comparison.is_rate)
    two = Figure(note="hangs") if other is None else _figure(other, comparison.is_rate)
    ratio = one.value / two.value if one.value and two.value else None
    target, sign, is_met = comparison.target, "≥" if comparison.is_rate else "≤", None
    if target is not None and ratio is not None:
        is_met = ratio >= target if comparison.is_rate else ratio <= target
    return Row(
        section,
        comparison.name,
        unit="/s" if comparison.is_rate else "s",
        ours=one,
        other=two,
        ratio=ratio,
        target="" if target is None else f"{sign} {target:g}",
        is_met=is_met,
    )


def _figure(samples: Samples, is_rate: bool) -> Figure:
    if samples.median is None:
        return Figure(error=samples.error)
    values = [1 / seconds for seconds in samples.seconds] if is_rate else samples.seconds
    first, median, third = statistics.quantiles(values, n=4)
    return Figure(median, (first, third), len(values))
