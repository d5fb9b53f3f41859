"""Which requests have come already."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.errors import RemoteProtocolError
from lockstitch.runtime.numbering import Arrivals


@given(st.lists(st.integers(1, 60), max_size=80))
def test_each_number_is_new_once_in_whatever_order_they_come(numbers: list[int]) -> None:
    arrivals, seen = Arrivals(), set()
    for number in numbers:
        assert arrivals.is_new(number) == (number not in seen)
        seen.add(number)
    assert arrivals.repeated == len(numbers) - len(seen)


def test_what_is_very_late_does_not_count_as_new() -> None:
    arrivals = Arrivals()
    assert arrivals.is_new(100_000)
    assert not arrivals.is_new(5)
    assert arrivals.is_new(99_000)
    assert not arrivals.is_new(99_000)


def test_a_leap_that_nobody_can_have_made_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        Arrivals().is_new(1 << 40)


def test_what_is_given_up() -> None:
    arrivals = Arrivals()
    assert not arrivals.is_given_up(3)
    for number in range(3, 10_000):
        arrivals.give_up(number)
    assert arrivals.is_given_up(9_999)
    assert not arrivals.is_given_up(3)  # long ago
