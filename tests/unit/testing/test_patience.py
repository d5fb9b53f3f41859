"""Patience ends after its time, but not because the clock has leapt."""

from __future__ import annotations

from lockstitch.testing.patience import Patience


class Hands:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_it_is_over_when_the_time_is() -> None:
    hands = Hands()
    patience = Patience(2.0, hands)
    looks = []
    for _ in range(5):
        hands.time += 0.5
        looks.append(patience.is_over())
    assert looks == [False, False, False, False, True]


def test_a_machine_that_was_stopped_has_not_been_waited_for() -> None:
    hands = Hands()
    patience = Patience(10.0, hands)
    hands.time += 3600
    assert not patience.is_over()
    assert repr(patience) == "<Patience · 9.000 s left>"


def test_it_ends_even_where_every_look_is_slow() -> None:
    hands = Hands()
    patience = Patience(10.0, hands)
    looks = 1
    hands.time += 60
    while not patience.is_over():
        hands.time += 60
        looks += 1
    assert looks == 11
