"""The bubble of a simulated pass is that of theory, where the theory's assumptions hold."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from lockstitch.nn.pipelining.schedules import TICKS, Action, Schedule, make_schedule
from lockstitch.nn.pipelining.simulation import Span, bubble, simulate, theoretical_bubble


def simulated_bubble(schedule: Schedule) -> float:
    return bubble(simulate(schedule, lambda action: float(TICKS[action.work])))


def test_bubble_of_1f1b_with_4_stages_and_16_micro_batches_is_3_of_19():
    assert simulated_bubble(make_schedule("1f1b", range(4), 16)) == pytest.approx(3 / 19)


@given(
    strategies.sampled_from(["1f1b", "gpipe", "zero_bubble", "interleaved"]),
    strategies.integers(1, 6),
    strategies.integers(1, 4),
)
def test_bubble_is_that_of_theory(name, workers, times):
    rounds = 2 if name in ("interleaved", "gpipe") else 1
    placement = tuple(range(workers)) * rounds
    schedule = make_schedule(name, placement, workers * rounds * times)
    assert simulated_bubble(schedule) == pytest.approx(theoretical_bubble(schedule), abs=1e-12)


def test_transfers_delay_what_others_wait_for():
    schedule = make_schedule("gpipe", range(2), 2)
    without, slow = (simulate(schedule, lambda _: 1.0, seconds) for seconds in (0.0, 0.5))
    assert [span.begin for span in without[1]] == [1, 2, 3, 4]
    assert [span.begin for span in slow[1]] == [1.5, 2.5, 3.5, 4.5]


def test_a_table_in_which_two_wait_for_each_other_cannot_be_carried_out():
    rows = ((Action("B", 0, 0), Action("F", 0, 0)), (Action("F", 1, 0), Action("B", 1, 0)))
    with pytest.raises(ValueError, match="B0 of stage 0 can never begin"):
        simulate(Schedule("", (0, 1), 1, rows), lambda _: 1.0)


def test_nothing_has_no_bubble():
    assert bubble([[], []]) == 0
    assert bubble([[Span(Action("F", 0, 0), 3.0, 3.0)]]) == 0
