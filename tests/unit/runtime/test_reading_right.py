"""The reading right of one connection is passed on to whoever is next, interrupts or not."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest

from lockstitch.runtime.next_reader import Watch
from lockstitch.runtime.pending import Pending
from lockstitch.runtime.reading_right import ReadingRight
from tests.unit.runtime.stage import Background, wait_until
from tests.unit.wire.interrupts import Interrupter, Strike, strike_everywhere


class Pool:
    """Notes what is asked of the thread pool; with `error` set, an interrupt comes instead."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.checks: list[object] = []
        self.error: BaseException | None = None

    def _note(self, what: str) -> None:
        self.done.append(what)
        if self.error is not None:
            raise self.error

    def arm(self, _connection: object) -> None:
        self._note("arm")

    def watch_end(self, _connection: object) -> None:
        self._note("watch end")

    def resume(self, _source: object) -> None:
        self._note("resume")

    def look_after(self, check: object) -> None:
        self.checks.append(check)
        self._note("look after")

    def hasten(self) -> None:
        self._note("hasten")


class Answers:
    requested = 0
    is_urgent = False
    is_closed = False
    expecting = True
    left_over = False
    new_caller = False

    def has_new_caller(self) -> bool:
        return self.new_caller

    def is_expecting(self) -> bool:
        return self.expecting

    def is_left_over(self) -> bool:
        return self.left_over

    def serve(self) -> None: ...

    def leave(self) -> None: ...


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def right(pool, answers) -> ReadingRight:
    return ReadingRight(pool, None, answers)  # type: ignore[arg-type]


def test_answers_that_nobody_waits_for_are_read_a_moment_later(right, pool) -> None:
    right.expect()
    right.expect()
    assert (right.watch, pool.done) == (Watch.SCHEDULED, ["look after"])
    (check,) = pool.checks
    assert check()
    assert (right.watch, pool.done[1:]) == (Watch.ARMED, ["arm", "hasten"])
    right.note_told()
    assert right.watch is Watch.IDLE


def test_a_caller_that_goes_on_sending_puts_that_off_five_times(right, pool, answers) -> None:
    right.expect()
    (check,) = pool.checks
    for _ in range(5):
        answers.requested += 1
        assert not check()
        assert right.watch is Watch.SCHEDULED
    answers.requested += 1
    assert check()
    assert right.watch is Watch.ARMED


def test_a_caller_that_waits_for_another_answer_puts_that_off_for_as_long(
    right, pool, answers
) -> None:
    right.expect()
    (check,) = pool.checks
    answers.new_caller = True
    assert not check()
    assert right.watch is Watch.SCHEDULED
    answers.new_caller = False
    assert check()
    assert right.watch is Watch.ARMED


def test_answers_that_somebody_wants_at_once_are_listened_for_at_once(right, pool, answers) -> None:
    answers.is_urgent = True
    right.expect()
    right.demand()
    assert (right.watch, pool.done) == (Watch.ARMED, ["arm"])


def test_whoever_wants_an_answer_at_once_does_not_wait_for_the_check(right, pool) -> None:
    right.expect()
    right.demand()
    assert (right.watch, pool.done) == (Watch.ARMED, ["look after", "arm"])
    (check,) = pool.checks
    assert check()  # it comes too late to matter
    assert (right.watch, pool.done[2:]) == (Watch.ARMED, [])


@pytest.mark.parametrize("why", ["read", "nothing expected"])
def test_nothing_is_done_while_somebody_reads_or_nothing_comes(right, pool, answers, why) -> None:
    answers.expecting = why == "read"
    if why == "read":
        right.lock.acquire()
    right.expect()
    right.demand()
    assert pool.done == []


def test_what_is_left_over_is_given_to_the_pool(right, pool, answers) -> None:
    answers.left_over = True
    right.pass_on()
    assert pool.done == ["resume"]


def test_a_closed_connection_is_given_to_nobody(right, pool, answers) -> None:
    answers.is_closed = True
    right.pass_on()
    assert pool.done == []


def test_the_first_follower_without_an_answer_is_woken(right, pool) -> None:
    first, second = Pending(None, None, None), Pending(None, None, None)
    right.lock.acquire()
    waiting = [Background(right.follow, first)]
    wait_until(lambda: len(right.followers) == 1)
    waiting.append(Background(right.follow, second))
    wait_until(lambda: len(right.followers) == 2 and len(second.locks) == 1)
    assert repr(right) == "<ReadingRight taken · 2 follow · idle>"
    first.delivered = True  # somebody decodes it, and wakes its thread then
    right.lock.release()
    right.pass_on()
    waiting[1].result()
    assert waiting[0].is_running
    first.finish(None, None)
    waiting[0].result()
    assert pool.done == []
    assert repr(right) == "<ReadingRight free · 0 follow · idle>"


def test_no_interrupt_leaves_a_follower_that_would_be_woken_in_the_place_of_others(pool) -> None:
    def attempt(number: int) -> Interrupter:
        right = ReadingRight(pool, None, Answers())  # type: ignore[arg-type]
        strike = Interrupter(number, ("lockstitch.runtime.reading_right", "contextlib"))
        with suppress(Strike):
            try:
                sys.setprofile(strike)
                right.follow(Pending(None, None, None))
            finally:
                sys.setprofile(None)
        assert not right.followers, strike.where
        return strike

    assert strike_everywhere(attempt) > 3


def test_whoever_reads_passes_the_right_on_also_after_an_error(right, pool) -> None:
    assert right.read_if_free(lambda: None)
    right._is_scheduled = False
    with pytest.raises(KeyError):
        right.read_if_free({}.__getitem__, "missing")
    assert not right.lock.locked()
    wait_until(lambda: len(pool.done) == 2, "by another thread, which no interrupt strikes")
    assert pool.done == 2 * ["look after"]
    with right.lock:
        assert not right.read_if_free(lambda: pytest.fail("somebody else reads"))


@pytest.mark.parametrize("ask", ["expect", "demand"])
def test_who_is_interrupted_while_telling_the_pool_leaves_no_note_of_it(right, pool, ask) -> None:
    pool.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        getattr(right, ask)()
    assert right.watch is Watch.IDLE
    pool.error = None
    getattr(right, ask)()
    assert right.watch is not Watch.IDLE


def test_the_end_is_watched_unless_the_poller_is_armed(right, pool) -> None:
    right.watch_end()
    right.demand()
    right.watch_end()
    assert pool.done == ["watch end", "arm"]
