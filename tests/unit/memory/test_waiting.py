"""What usually takes little is known to be short, after a few times."""

from __future__ import annotations

from lockstitch.memory.waiting import DurationEstimate, WorkEstimate

SHORT_SECONDS = 200e-6


def test_nothing_is_short_before_it_was_measured():
    assert not WorkEstimate().is_below(SHORT_SECONDS)


def test_what_was_long_once_is_short_when_it_has_been_so_for_a_while():
    estimate = WorkEstimate()
    estimate.learn(4 * SHORT_SECONDS)
    assert not estimate.is_below(SHORT_SECONDS)
    for _ in range(10):
        estimate.learn(SHORT_SECONDS / 2)
    assert estimate.is_below(SHORT_SECONDS)


def test_every_eighth_piece_of_work_is_measured_from_the_first_on():
    estimate = WorkEstimate()
    assert [estimate.is_due() for _ in range(17)] == [i % 8 == 0 for i in range(17)]


def test_measured_work_returns_what_it_returns():
    estimate = WorkEstimate()
    assert [estimate.measure(lambda: "done") for _ in range(2)] == ["done"] * 2
    assert estimate.is_below(SHORT_SECONDS)


def test_the_average_follows_and_no_single_wait_counts_for_more_than_the_most():
    estimate = DurationEstimate(most_seconds=4.0)
    for seconds in (4.0, 1000.0, 0.25):
        estimate.note(seconds)
    assert estimate.usual_seconds == (1.0 + 0.75) * 0.75 + 0.0625
