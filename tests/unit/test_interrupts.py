"""An interrupt at any step of holding a lock leaves the lock free."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from lockstitch import interrupts
from lockstitch.interrupts import if_free, take, when_free


class Struck(BaseException):
    """Stands for Ctrl-C."""


def struck_at(step: int, work) -> int:
    """Runs `work()` and raises `Struck` at the given step; returns how many steps there were."""
    count = 0

    def trace(frame, event, _argument):
        nonlocal count
        if frame.f_code.co_filename != interrupts.__file__:
            return None
        frame.f_trace_lines = True
        # Only where the interpreter looks for signals: as a function begins, and after each line
        # that calls something. The lines of a `finally` that give back call nothing before that.
        is_giving_back = event == "line" and frame.f_lineno in GIVING_BACK
        if event in ("call", "line") and not is_giving_back:
            count += 1
            if count == step:
                raise Struck
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Struck:
        pass
    finally:
        sys.settrace(before)
    return count


def _lines_that_give_back() -> set[int]:
    lines = Path(interrupts.__file__).read_text().split("\n")
    found = set()
    for number, line in enumerate(lines, 1):
        if line.strip() == "finally:":
            found.update((number, number + 1, number + 2))
    return found


GIVING_BACK = _lines_that_give_back()


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
    lock = threading.Lock()
    steps = struck_at(0, lambda: hold(lock))
    assert steps >= 2
    for step in range(1, steps + 1):
        struck_at(step, lambda: hold(lock))
        assert not lock.locked(), f"struck at step {step} of {steps}"


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
