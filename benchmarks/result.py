"""From samples to a row: medians, quartiles, ratios, and whether a promise was kept."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.plan import Comparison, Target

_P99_NEEDS = 100


@dataclass
class Samples:
    """Seconds per operation as one contender did it, or why it could not.

    `first`: the very first time in its world, when nothing was warm.
    """

    seconds: list[float] = field(default_factory=list)
    first: float | None = None
    error: str = ""
    note: str = ""
    """Says why there are none, where nothing went wrong."""


@dataclass(frozen=True)
class Figure:
    """One side of a row, in the row's unit. Without a value, `note` and `error` say why."""

    value: float | None = None
    quartiles: tuple[float, float] | None = None
    p99: float | None = None
    first: float | None = None
    samples: int = 0
    note: str = ""
    error: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the table. Units: "s", "/s", "GB/s", "share" (of a core), "MB", "" (a count).

    `distance`: how many times the limit we take. `x`: the abscissa, in a curve.
    """

    section: str
    name: str
    unit: str
    ours: Figure
    other: Figure = Figure()
    limit: Figure = Figure()
    ratio: float | None = None
    distance: float | None = None
    target: str = ""
    ratio_target: float | None = None
    is_met: bool | None = None
    x: float | None = None


def compare(section: str, comparison: Comparison, samples: Mapping[str, Samples]) -> Row:
    """The row of a comparison, from what each role's contender did."""
    figures = {role: summarise(each, comparison) for role, each in samples.items()}
    ours = figures["ours"]
    other, limit = figures.get("other", Figure()), figures.get("limit", Figure())
    is_rate = comparison.unit != "s"
    distance = _ratio(limit, ours) if is_rate else _ratio(ours, limit)
    ratio = _ratio(ours, other)
    return Row(
        section,
        comparison.name,
        comparison.unit,
        ours,
        other,
        limit,
        ratio,
        distance,
        describe(comparison.target, is_rate=is_rate),
        comparison.target.ratio,
        is_met(comparison.target, is_rate=is_rate, ratio=ratio, distance=distance, p99=ours.p99),
        comparison.x,
    )


def summarise(samples: Samples, comparison: Comparison) -> Figure:
    """Median and quartiles in the row's unit; the 99th percentile of times where there are a
    hundred."""
    if samples.note:
        return Figure(note=samples.note)
    if samples.error or not samples.seconds:
        note = "hangs" if comparison.patience_seconds is not None else "failed"
        return Figure(note=note, error=samples.error or "not one sample in time")
    scale = _scale(comparison)
    values = [scale(seconds) for seconds in samples.seconds]
    first, median, third = quartiles(values)
    is_time = comparison.unit == "s"
    return Figure(
        median,
        (first, third),
        percentile(samples.seconds, 99) if is_time and len(values) >= _P99_NEEDS else None,
        None if samples.first is None else scale(samples.first),
        len(values),
    )


def _scale(comparison: Comparison) -> Callable[[float], float]:
    if comparison.unit == "s":
        return lambda seconds: seconds
    operation = 1 if comparison.size is None else comparison.size / 1e9
    return lambda seconds: operation / seconds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First, second and third; of a single value, three times itself."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, median, third


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that `percent` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def describe(target: Target, *, is_rate: bool) -> str:
    """A promise in the fewest signs."""
    words = []
    if target.ratio is not None:
        words.append(f"{'≥' if is_rate else '≤'} {target.ratio:g}")
    if target.distance is not None:
        words.append(f"≤ {target.distance:g} × limit")
    if target.p99_seconds is not None:
        words.append(f"p99 ≤ {1000 * target.p99_seconds:g} ms")
    return ", ".join(words)


def is_met(
    target: Target,
    *,
    is_rate: bool,
    ratio: float | None,
    distance: float | None,
    p99: float | None,
) -> bool | None:
    """Whether all that is promised was kept; None where nothing is, or it cannot be said."""
    kept: list[bool | None] = []
    if target.ratio is not None:
        bound = target.ratio
        kept.append(None if ratio is None else (ratio >= bound if is_rate else ratio <= bound))
    if target.distance is not None:
        kept.append(None if distance is None else distance <= target.distance)
    if target.p99_seconds is not None:
        kept.append(None if p99 is None else p99 <= target.p99_seconds)
    if False in kept:
        return False
    return None if None in kept or not kept else True


def _ratio(one: Figure, two: Figure) -> float | None:
    return one.value / two.value if one.value is not None and two.value else None
