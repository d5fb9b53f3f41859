"""What usually takes little is known to be short, after a few times."""

from __future__ import annotations

from lockstitch.nn.slots.habits import SHORT_SECONDS, Habit


def test_nothing_is_short_before_it_was_measured():
    assert not Habit().is_short


def test_what_was_long_once_is_short_when_it_has_been_so_for_a_while():
    habit = Habit()
    habit.learn(4 * SHORT_SECONDS)
    assert not habit.is_short
    for _ in range(10):
        habit.learn(SHORT_SECONDS / 2)
    assert habit.is_short


def test_every_eighth_piece_of_work_is_measured_from_the_first_on():
    habit = Habit()
    assert [habit.is_due() for _ in range(17)] == [i % 8 == 0 for i in range(17)]


def test_measured_work_returns_what_it_returns():
    habit = Habit()
    assert [habit.measure(lambda: "done") for _ in range(2)] == ["done"] * 2
    assert habit.is_short
