"""Calls are counted by function and peer; quantiles follow from bins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.attach.traffic import BOUNDS, MOST_SERIES, OTHERS, Traffic, growth, quantile


def test_counts_are_those_of_each_function_and_peer() -> None:
    traffic = Traffic()
    traffic.series(("call", "f", "w", "ps")).note(0.25, 100, 7, has_failed=False)
    traffic.series(("call", "f", "w", "ps")).note(0.5, 100, 0, has_failed=True)
    traffic.series(("serve", "f", "w", "ps")).note(0.125, 1, 2, has_failed=False)
    traffic.series(("call", "f", "other", "ps")).note(1.0, 1, 1, has_failed=False)
    made, served = traffic.of("w")
    assert (made.role, made.function, made.peer) == ("made", "f", "ps")
    assert (made.count, made.failed, made.seconds) == (2, 1, 0.75)
    assert (made.sent, made.received) == (200, 7)
    assert sum(made.bins) == 2
    assert (served.role, served.count) == ("served", 1)


@given(st.lists(st.floats(2e-6, 700), min_size=1, max_size=30), st.floats(0.01, 1))
def test_a_quantile_is_that_of_the_durations_to_within_a_bin(
    durations: list[float], share: float
) -> None:
    traffic = Traffic()
    for each in durations:
        traffic.series(("call", "f", "w", "ps")).note(each, 0, 0, has_failed=False)
    found = quantile(traffic.of("w")[0].bins, share)
    exact = sorted(durations)[math.ceil(share * len(durations)) - 1]
    assert found is not None
    assert exact / 1.28 <= found <= exact * 1.28


def test_there_is_no_quantile_of_nothing_and_what_is_above_all_bounds_is_the_last() -> None:
    assert quantile((), 0.5) is None
    assert quantile((0,) * len(BOUNDS) + (3,), 0.5) == BOUNDS[-1]


def test_growth_is_what_came_since() -> None:
    traffic = Traffic()
    traffic.series(("call", "f", "w", "ps")).note(0.25, 100, 7, has_failed=False)
    (before,) = traffic.of("w")
    traffic.series(("call", "f", "w", "ps")).note(2.0, 50, 3, has_failed=True)
    (now,) = traffic.of("w")
    grown = growth(now, before)
    assert (grown.count, grown.failed, grown.seconds) == (1, 1, 2.0)
    assert (grown.sent, grown.received, sum(grown.bins)) == (50, 3, 1)
    assert growth(now, None) == now
    assert growth(before, now) == before  # the worker has begun anew


def test_calls_are_noted_by_the_label_of_their_spans_and_counted_once() -> None:
    traffic = Traffic()
    for kind, has_failed, seconds in [
        ("call", False, 0.25), ("answer", True, 0.25), ("serve", False, 2.0)
    ]:  # fmt: skip
        traffic.series((kind, "f", "w", "ps")).note(seconds, 100, 7, has_failed=has_failed)
    for _ in range(2):
        traffic.count_noted()
    made, served = traffic.of("w")
    assert (made.role, made.function, made.peer) == ("made", "f", "ps")
    assert (made.count, made.failed, made.seconds) == (2, 1, 0.5)
    assert (made.sent, made.received) == (200, 14)
    assert (served.role, served.count, served.failed) == ("served", 1, 0)
    assert [BOUNDS[one.bins.index(sum(one.bins))] for one in (made, served)] == [0.25, 2.0]


def test_functions_without_number_are_counted_together() -> None:
    traffic = Traffic()
    for number in range(MOST_SERIES + 10):
        traffic.series(("call", f"f{number}", "w", "ps")).note(0.25, 0, 0, has_failed=False)
    told = {each.function: each.count for each in traffic.of("w")}
    assert len(told) == MOST_SERIES + 1
    assert told[OTHERS] == 10


@pytest.mark.parametrize("bound", [1e-6, 1e-3, 1.0, 500.0])
def test_bounds_have_the_powers_of_ten_and_their_halves(bound: float) -> None:
    assert bound in BOUNDS
