"""No more calls run than may; what waits comes in its order, and calls that went on are counted."""

from __future__ import annotations

from lockstitch.runtime.call_limit import CallLimit


def call() -> None: ...


def other() -> None: ...


def test_what_exceeds_the_limit_waits_and_takes_the_place_of_the_next_that_ends() -> None:
    limit = CallLimit(1)
    assert limit.begin(call)
    assert not limit.begin(call)
    assert not limit.begin(other)
    assert repr(limit) == "<CallLimit 1 of 1 run · 2 wait>"
    assert limit.end() is call
    assert limit.end() is other
    assert (limit.running, limit.backlog) == (1, 0)
    assert limit.end() is None
    assert limit.running == 0


def test_what_is_lined_up_begins_in_its_order_where_there_is_a_place() -> None:
    limit = CallLimit(1)
    assert limit.begin_next() is None
    assert limit.line_up(call)
    assert not limit.line_up(other)  # whoever comes for the first will see to it
    assert (limit.running, limit.backlog) == (0, 2)
    assert limit.begin_next() is call
    assert not limit.line_up(call)
    assert limit.begin_next() is None
    assert [limit.end(), limit.end(), limit.end()] == [other, call, None]


def test_nothing_of_the_backlog_begins_while_more_run_than_may() -> None:
    limit = CallLimit(1)
    limit.begin(call)
    limit.begin_anyway()
    limit.begin(other)
    assert limit.end() is None
    assert limit.end() is other


def test_a_backlog_that_was_dropped_is_not_run() -> None:
    limit = CallLimit(1)
    limit.begin(call)
    limit.begin(other)
    limit.drop_backlog()
    assert limit.end() is None
