"""Which requests have come already."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.errors import RemoteProtocolError
from lockstitch.runtime.duplicate_filter import DuplicateFilter


@given(st.lists(st.integers(1, 60), max_size=80))
def test_each_number_is_new_once_in_whatever_order_they_come(numbers: list[int]) -> None:
    duplicates, seen = DuplicateFilter(), set()
    for number in numbers:
        assert duplicates.is_new(number) == (number not in seen)
        seen.add(number)
    assert duplicates.repeated == len(numbers) - len(seen)


def test_what_is_very_late_does_not_count_as_new() -> None:
    duplicates = DuplicateFilter()
    assert duplicates.is_new(100_000)
    assert not duplicates.is_new(5)
    assert duplicates.is_new(99_000)
    assert not duplicates.is_new(99_000)


def test_a_leap_that_nobody_can_have_made_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        DuplicateFilter().is_new(1 << 40)


def test_what_is_given_up() -> None:
    duplicates = DuplicateFilter()
    assert not duplicates.is_given_up(3)
    for number in range(3, 10_000):
        duplicates.give_up(number)
    assert duplicates.is_given_up(9_999)
    assert not duplicates.is_given_up(3)  # long ago


def test_what_is_given_up_before_it_comes_is_known_when_it_does() -> None:
    duplicates = DuplicateFilter()
    duplicates.give_up(2)
    assert duplicates.next != 2  # whoever takes the short way for the next one would not look
    assert duplicates.is_new(2)
    assert duplicates.is_given_up(2)
    assert duplicates.is_new(1)
    assert not duplicates.is_new(2)
