"""Samples become medians, ratios and verdicts; times and rates each the right way round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plan import Comparison, Target
from benchmarks.result import (
    Samples,
    compare,
    describe,
    is_met,
    percentile,
    quartiles,
    summarise,
)

TIMES = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=300)


def case(**options) -> Comparison:
    return Comparison("case", prepare=lambda library: None, **options)


def samples(*seconds: float) -> Samples:
    return Samples(list(seconds), first=2 * seconds[0])


@given(TIMES, st.integers(1, 100))
def test_a_percentile_is_one_of_the_values_and_enough_do_not_exceed_it(values, percent) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


@given(TIMES)
def test_quartiles_are_in_order_and_within_the_values(values) -> None:
    first, median, third = quartiles(values)
    slack = 1e-12
    assert min(values) - slack <= first <= median + slack
    assert median - slack <= third <= max(values) + slack


def test_quartiles_of_a_few() -> None:
    assert quartiles([5.0]) == (5.0, 5.0, 5.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_times_are_compared_ours_over_theirs_and_ours_over_the_limit() -> None:
    sides = {"ours": samples(1, 2, 3), "other": samples(8, 8, 8), "limit": samples(1, 1, 1)}
    row = compare("calls", case(target=Target(0.25, distance=3)), sides)
    assert (row.ours.value, row.other.value, row.limit.value) == (2, 8, 1)
    assert (row.ratio, row.distance, row.unit) == (0.25, 2, "s")
    assert row.is_met is True
    assert row.target == "≤ 0.25, ≤ 3 × limit"
    assert row.ours.first == 2


def test_rates_are_compared_the_other_way_round() -> None:
    sides = {"ours": samples(0.5), "other": samples(1.0), "limit": samples(0.25)}
    row = compare("calls", case(target=Target(3.0), is_rate=True), sides)
    assert (row.ours.value, row.other.value, row.unit) == (2, 1, "/s")
    assert (row.ratio, row.distance, row.is_met) == (2, 2, False)
    assert row.target == "≥ 3"


def test_bytes_become_gigabytes_per_second() -> None:
    row = compare("tensors", case(size=2_000_000_000, is_rate=True), {"ours": samples(4.0)})
    assert (row.ours.value, row.ours.first, row.unit) == (0.5, 0.25, "GB/s")
    assert row.ratio is row.distance is row.is_met is None


def test_who_fails_or_hangs_has_no_figure_but_an_account() -> None:
    failed = summarise(Samples(error="it broke"), case())
    assert (failed.value, failed.note, failed.error) == (None, "failed", "it broke")
    assert summarise(Samples(error="no answer"), case(patience_seconds=3)).note == "hangs"
    assert summarise(Samples(note="no time"), case()).error == ""
    row = compare("calls", case(target=Target(0.5)), {"ours": samples(1), "other": Samples()})
    assert row.ratio is None
    assert row.is_met is None


def test_the_99th_percentile_takes_a_hundred_samples() -> None:
    many = [1.0] * 99 + [9.0, 9.0]
    assert summarise(Samples(many), case()).p99 == 9.0
    assert summarise(Samples(many[:99]), case()).p99 is None
    assert summarise(Samples(many), case(is_rate=True)).p99 is None


@pytest.mark.parametrize(
    ("target", "ratio", "distance", "p99", "verdict"),
    [
        (Target(), 9.0, 9.0, 9.0, None),
        (Target(0.5), 0.5, None, None, True),
        (Target(0.5), None, None, None, None),
        (Target(0.5, p99_seconds=1.0), 0.4, None, 2.0, False),
        (Target(0.5, p99_seconds=1.0), 0.4, None, None, None),
        (Target(0.5, distance=2.0), None, 3.0, None, False),
    ],
)
def test_a_promise_is_kept_broken_or_unknown(target, ratio, distance, p99, verdict) -> None:
    assert is_met(target, is_rate=False, ratio=ratio, distance=distance, p99=p99) is verdict


def test_promises_are_told_in_few_signs() -> None:
    assert describe(Target(0.1, p99_seconds=0.005), is_rate=False) == "≤ 0.1, p99 ≤ 5 ms"
    assert describe(Target(), is_rate=True) == ""
