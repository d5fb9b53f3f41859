"""Waiting for all ranks at the start ends, whatever happens to one of them."""

from __future__ import annotations

import threading

import pytest

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives.c10d.beginning import Beginning, in_thread
from lockstitch.collectives.pending_operations import PendingOperations
from lockstitch.errors import CollectiveError, RankLostError


class Clock:
    """One on which every wait takes all of its time, in no time."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait(self, waiter: threading.Event, timeout_seconds: float | None) -> bool:
        self.time += timeout_seconds or 0.0
        return waiter.is_set()

    wait_until = wait


def pending(rank: int) -> PendingOperations:
    return PendingOperations(rank, Clock())  # type: ignore[arg-type]


def nobody() -> str | None:
    return None


def test_begins_when_all_have_come() -> None:
    beginning = Beginning(0, pending(1))
    beginning.end()
    beginning.await_all(60.0, nobody)


def test_rank_that_is_lost_meanwhile_is_raised() -> None:
    mine = pending(1)
    beginning = Beginning(0, mine)
    mine.break_off(RankLostError("rank 2 did not come"))
    beginning.end()
    with pytest.raises(RankLostError, match="rank 2 did not come"):
        beginning.await_all(60.0, nobody)


def test_what_somebody_knows_of_a_rank_ends_the_wait_at_once() -> None:
    mine = pending(0)
    with pytest.raises(RankLostError, match="^rank 1 gave up$"):
        Beginning(0, mine).await_all(60.0, lambda: "rank 1 gave up")
    assert mine.clock.now() < 1.0


def test_rank_0_that_says_nothing_is_named_when_the_time_is_over() -> None:
    mine = pending(1)
    with pytest.raises(CollectiveError, match="rank 0 did not tell rank 1 within 60 s that all"):
        Beginning(0, mine).await_all(60.0, nobody)
    assert 60.0 <= mine.clock.now() < 70.0


def raise_it() -> None:
    raise ValueError("such a thing")


def test_work_in_a_thread_gives_its_value_or_its_error() -> None:
    mine = PendingOperations(0, SYSTEM_CLOCK)
    assert in_thread(lambda: 7, mine) == 7
    with pytest.raises(ValueError, match="such a thing"):
        in_thread(raise_it, mine)


def test_somebody_looks_while_work_in_a_thread_goes_on() -> None:
    may_end = threading.Event()
    in_thread(may_end.wait, PendingOperations(0, SYSTEM_CLOCK), look=may_end.set)

    def look() -> None:
        raise ValueError("such a sight")

    may_end.clear()
    with pytest.raises(ValueError, match="such a sight"):
        in_thread(may_end.wait, PendingOperations(0, SYSTEM_CLOCK), look=look)
    may_end.set()


def test_work_that_does_not_end_is_left_when_a_rank_is_lost_or_the_time_is_over() -> None:
    may_end, mine = threading.Event(), pending(3)
    with pytest.raises(CollectiveError, match="rank 3 waits for more than 20 s where ranks meet"):
        in_thread(may_end.wait, mine, 20.0)
    mine.break_off(RankLostError("rank 2 died"))
    with pytest.raises(RankLostError, match="rank 2 died"):
        in_thread(may_end.wait, mine)
    may_end.set()
