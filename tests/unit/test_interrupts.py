"""An interrupt at any step of holding a lock leaves the lock free."""

from __future__ import annotations

import threading

import pytest

from lockstitch.interrupts import if_free, may_be_interrupt, take, when_free
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere


def taken_and_given_back(lock: threading.Lock) -> None:
    held: list[bool] = []
    try:
        take(lock, held, 1.0)
    finally:
        if held:
            lock.release()


@pytest.mark.parametrize(
    "hold",
    [
        lambda lock: if_free(lock, lambda: None),
        lambda lock: when_free(lock, 1.0, lambda: None),
        taken_and_given_back,
    ],
    ids=["if_free", "when_free", "take"],
)
def test_a_lock_is_free_after_an_interrupt_at_any_step(hold):
    def attempt(number: int) -> Interrupter:
        lock = threading.Lock()
        with interrupted(number, "lockstitch.interrupts") as interrupter:
            hold(lock)
        assert not lock.locked(), interrupter.where
        return interrupter

    assert strike_everywhere(attempt) >= 2


def test_the_task_is_run_with_its_arguments_while_the_lock_is_held():
    lock, seen = threading.Lock(), []
    assert if_free(lock, lambda *given: seen.append((lock.locked(), given)), 1, 2)
    assert when_free(lock, 0.0, lambda *given: seen.append((lock.locked(), given)), 3)
    assert seen == [(True, (1, 2)), (True, (3,))]


def test_nothing_is_run_and_nothing_given_back_where_another_has_it():
    lock = threading.Lock()
    with lock:
        assert not if_free(lock, pytest.fail)
        assert not when_free(lock, 0.001, pytest.fail)
        assert lock.locked()


def test_what_the_task_raises_frees_the_lock():
    lock = threading.Lock()
    with pytest.raises(ZeroDivisionError):
        if_free(lock, divmod, 1, 0)
    assert not lock.locked()


def test_only_in_the_main_thread_an_error_may_be_an_interrupt():
    found = []

    def look():
        found.extend(map(may_be_interrupt, (KeyboardInterrupt(), SystemExit(), ValueError())))

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [True, True, False, False, False, False]
