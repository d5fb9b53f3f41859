"""A time limit ends after its time, but not because the clock has leapt."""

from __future__ import annotations

from lockstitch.testing.time_limits import ActiveTimeLimit


class Hands:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_it_is_over_when_the_time_is() -> None:
    hands = Hands()
    time_limit = ActiveTimeLimit(2.0, hands)
    looks = []
    for _ in range(5):
        hands.time += 0.5
        looks.append(time_limit.is_over())
    assert looks == [False, False, False, False, True]


def test_a_machine_that_was_stopped_has_not_been_waited_for() -> None:
    hands = Hands()
    time_limit = ActiveTimeLimit(10.0, hands)
    hands.time += 3600
    assert not time_limit.is_over()
    assert repr(time_limit) == "<ActiveTimeLimit · 9.000 s left>"


def test_it_ends_even_where_every_look_is_slow() -> None:
    hands = Hands()
    time_limit = ActiveTimeLimit(10.0, hands)
    looks = 1
    hands.time += 60
    while not time_limit.is_over():
        hands.time += 60
        looks += 1
    assert looks == 11
