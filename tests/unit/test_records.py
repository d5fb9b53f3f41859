"""Records compare by their fields, have slots, and cost no more than they must."""

from __future__ import annotations

import pytest

from lockstitch.records import record


@record
class Point:
    x: int
    y: int = 0


def test_records_are_equal_and_hash_alike_where_their_fields_are():
    assert Point(1, 2) == Point(1, 2) != Point(2, 1)
    assert len({Point(1), Point(1, 0), Point(2)}) == 2
    assert repr(Point(1)) == "Point(x=1, y=0)"


def test_a_record_has_its_fields_and_no_others():
    with pytest.raises(AttributeError):
        Point(1).z = 3  # type: ignore[attr-defined]


def test_a_record_is_matched_by_its_fields_in_order():
    match Point(3, 4):
        case Point(x, y):
            assert (x, y) == (3, 4)
