from __future__ import annotations

import gc
import threading

import pytest

from lockstitch.ids import GlobalId
from lockstitch.rref.keeper import Keeper

FORKS = [GlobalId(0, 0, n) for n in range(3)]


@pytest.fixture
def dropped():
    return []


@pytest.fixture
def keeper(dropped):
    keeper = Keeper("test-keeper", dropped.append)
    yield keeper
    keeper.close()


def test_what_was_let_go_is_dropped_together_by_drain(keeper, dropped):
    for fork in FORKS:
        keeper.let_go(fork)
    keeper.drain()
    keeper.drain()
    assert dropped == [tuple(FORKS)]


def test_drain_also_takes_what_has_woken_the_thread_already(keeper, dropped, monkeypatch):
    woken, may_go_on = threading.Event(), threading.Event()

    def wait(_seconds):
        woken.set()
        return may_go_on.wait(10)

    monkeypatch.setattr(keeper._hurry, "wait", wait)
    keeper.start()
    keeper.let_go(FORKS[0])
    assert woken.wait(10)
    keeper.let_go(FORKS[1])
    keeper.drain()
    assert dropped == [tuple(FORKS[:2])]
    may_go_on.set()


def test_the_thread_drops_what_is_let_go_while_it_sleeps():
    heard = threading.Event()
    keeper = Keeper("test-keeper", lambda _forks: heard.set())
    keeper.start()
    keeper.start()
    assert not heard.is_set()
    keeper.let_go(FORKS[0])
    assert heard.wait(10)
    keeper.close()


def test_where_many_wait_they_need_not_wait_long(keeper):
    keeper.relieve()
    assert not keeper._hurry.is_set()
    for number in range(100):
        keeper.let_go(GlobalId(0, 0, number))
    keeper.relieve()
    assert keeper._hurry.is_set()


def test_a_finalizer_may_run_while_the_queue_is_in_use(keeper, dropped):
    class Finalized:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            keeper.let_go(FORKS[0])

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Finalized()
            keeper.let_go(FORKS[1])
            keeper.drain()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    keeper.drain()
    assert sum(forks.count(FORKS[0]) for forks in dropped) == 200
    assert sum(forks.count(FORKS[1]) for forks in dropped) == 200


def test_after_close_nothing_is_dropped_and_no_thread_is_started(keeper, dropped):
    keeper.start()
    keeper.close()
    keeper.close()
    keeper.let_go(FORKS[0])
    keeper.drain()
    keeper.start()
    assert dropped == []


def test_what_is_let_go_before_the_end_is_dropped_by_the_thread():
    dropped = []
    keeper = Keeper("test-keeper", lambda forks: dropped.extend(forks))
    keeper.start()
    for _ in range(100):
        keeper.let_go(FORKS[0])
    keeper.close()
    assert len(dropped) == 100


def test_closing_does_not_wait_for_ever_for_one_who_takes_in_nothing():
    begun, goes_on = threading.Event(), threading.Event()

    def drop(_forks):
        begun.set()
        goes_on.wait(60)

    keeper = Keeper("test-keeper", drop)
    keeper.start()
    keeper.let_go(FORKS[0])
    assert begun.wait(60)
    keeper.close(0.01)
    assert keeper._thread.is_alive()
    goes_on.set()
    keeper.close()
    assert not keeper._thread.is_alive()
