from __future__ import annotations

import gc
import threading

import pytest

from lockstitch.ids import GlobalId
from lockstitch.rref.finalizer_queue import FinalizerQueue
from tests.unit.wire.interrupts import interrupted, strike_everywhere

FORKS = [GlobalId(0, 0, n) for n in range(3)]


@pytest.fixture
def dropped():
    return []


@pytest.fixture
def queue(dropped):
    queue = FinalizerQueue("test-references", dropped.append)
    yield queue
    queue.close()


def test_what_was_let_go_is_dropped_together_by_drain(queue, dropped):
    for fork in FORKS:
        queue.let_go(fork)
    queue.drain()
    queue.drain()
    assert dropped == [tuple(FORKS)]


def test_drain_also_takes_what_has_woken_the_thread_already(queue, dropped, monkeypatch):
    woken, may_go_on = threading.Event(), threading.Event()

    def wait(_seconds):
        woken.set()
        return may_go_on.wait(10)

    monkeypatch.setattr(queue._hurry, "wait", wait)
    queue.start()
    queue.let_go(FORKS[0])
    assert woken.wait(10)
    queue.let_go(FORKS[1])
    queue.drain()
    assert dropped == [tuple(FORKS[:2])]
    may_go_on.set()


def test_the_thread_drops_what_is_let_go_while_it_sleeps():
    heard = threading.Event()
    queue = FinalizerQueue("test-references", lambda _forks: heard.set())
    queue.start()
    queue.start()
    assert not heard.is_set()
    queue.let_go(FORKS[0])
    assert heard.wait(10)
    queue.close()


def test_where_many_wait_they_need_not_wait_long(queue):
    queue.relieve()
    assert not queue._hurry.is_set()
    for number in range(100):
        queue.let_go(GlobalId(0, 0, number))
    queue.relieve()
    assert queue._hurry.is_set()


def test_a_finalizer_may_run_while_the_queue_is_in_use(queue, dropped):
    class Finalized:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            queue.let_go(FORKS[0])

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Finalized()
            queue.let_go(FORKS[1])
            queue.drain()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    queue.drain()
    assert sum(forks.count(FORKS[0]) for forks in dropped) == 200
    assert sum(forks.count(FORKS[1]) for forks in dropped) == 200


def test_after_close_nothing_is_dropped_and_no_thread_is_started(queue, dropped):
    queue.start()
    queue.close()
    queue.close()
    queue.let_go(FORKS[0])
    queue.drain()
    queue.start()
    assert dropped == []


def test_what_is_let_go_before_the_end_is_dropped_by_the_thread():
    dropped = []
    queue = FinalizerQueue("test-references", lambda forks: dropped.extend(forks))
    queue.start()
    for _ in range(100):
        queue.let_go(FORKS[0])
    queue.close()
    assert len(dropped) == 100


def test_closing_does_not_wait_for_ever_for_one_who_takes_in_nothing():
    begun, goes_on = threading.Event(), threading.Event()

    def drop(_forks):
        begun.set()
        goes_on.wait(60)

    queue = FinalizerQueue("test-references", drop)
    queue.start()
    queue.let_go(FORKS[0])
    assert begun.wait(60)
    queue.close(0.01)
    assert queue._thread.is_alive()
    goes_on.set()
    queue.close()
    assert not queue._thread.is_alive()


def test_an_interrupt_while_the_thread_is_started_leaves_none_too_few():
    def attempt(number):
        heard = threading.Event()
        queue = FinalizerQueue("test-references", lambda _things: heard.set())
        with interrupted(number, FinalizerQueue.__module__) as striker:
            queue.start()
        queue.start()
        queue.let_go(FORKS[0])
        assert heard.wait(10), striker.where
        queue.close()
        return striker

    assert strike_everywhere(attempt) > 1
