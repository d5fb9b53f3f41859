"""Threads are started when they are needed, used again, and end when they are not."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest

from lockstitch.runtime import threads as module
from lockstitch.runtime.threads import Threads
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 10.0


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads("pool", lambda: None)
    yield made
    made.close()


class Task:
    """Runs until it may end; `name` is that of its thread."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.name = threading.current_thread().name
        self.begun.set()
        assert self.may_end.wait(SECONDS)


def run(threads: Threads) -> str:
    """Runs a task to its end, and until its thread is idle; the name of that."""
    task = Task()
    busy = threads.busy
    threads.assign(task)
    assert task.begun.wait(SECONDS)
    task.may_end.set()
    while threads.busy > busy:
        pass
    return task.name


def test_tasks_at_once_have_a_thread_each(threads: Threads) -> None:
    tasks = [Task() for _ in range(3)]
    for task in tasks:
        threads.assign(task)
    assert all(task.begun.wait(SECONDS) for task in tasks)
    assert {task.name for task in tasks} == {"pool-1", "pool-2", "pool-3"}
    assert len(threads) == threads.busy == 3
    for task in tasks:
        task.may_end.set()


def test_an_idle_thread_is_used_again(threads: Threads) -> None:
    assert [run(threads), run(threads)] == ["pool-1", "pool-1"]
    assert len(threads) == 1


def test_an_idle_thread_keeps_nothing_alive_of_what_it_ran(threads: Threads) -> None:
    task = Task()
    gone = weakref.ref(task)
    task.may_end.set()
    threads.assign(task)
    assert task.begun.wait(SECONDS)
    del task
    while threads.busy:
        pass
    assert gone() is None


def test_each_thread_enters_first() -> None:
    entered: list[str] = []
    threads = Threads("pool", lambda: entered.append(threading.current_thread().name))
    run(threads)
    run(threads)
    assert entered == ["pool-1"]
    threads.close()


def test_closing_ends_the_idle_at_once_and_the_others_after_their_task(threads: Threads) -> None:
    task = Task()
    threads.assign(task)
    assert task.begun.wait(SECONDS)
    run(threads)
    busy, idle = sorted(threads.all(), key=lambda thread: thread.name)
    threads.close()
    idle.join(SECONDS)
    assert not idle.is_alive()
    assert busy.is_alive()
    task.may_end.set()
    busy.join(SECONDS)
    assert not busy.is_alive()
    assert len(threads) == 0


def test_who_is_idle_for_long_ends(monkeypatch: pytest.MonkeyPatch, threads: Threads) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.001)
    task = Task()
    threads.assign(task)
    (thread,) = threads.all()
    task.may_end.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert run(threads) == "pool-2"


def test_no_interrupt_of_who_assigns_loses_a_thread_or_leaves_one_busy() -> None:
    def attempt(number: int) -> Interrupter:
        threads = Threads("pool", lambda: None)
        for _ in range(2):  # one that is to be started, one that is idle
            with interrupted(number, "lockstitch.runtime.threads") as strike:
                threads.assign(lambda: None)
            deadline = time.monotonic() + SECONDS
            while threads.busy > 0 and time.monotonic() < deadline:
                threading.Event().wait(0.001)
            assert threads.busy == 0, strike.where
        threads.close()
        return strike

    assert strike_everywhere(attempt) > 1
