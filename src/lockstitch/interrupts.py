"""Ctrl-C: what it may interrupt, and the one way to hold a lock through it.

Python raises `KeyboardInterrupt` in the main thread between two steps of its code: when a function
begins, when a call has returned, when a loop goes round. So it may come after a lock was taken and
before the code knows of it, and the lock is never given back. The law of this library:

1. A wait ends at an interrupt, wherever it is, and raises it where the user waits.
2. Nothing is lost by it. Who is struck between taking something and noting it is the danger, so
   the two are one step: a call from C, here of `lock.acquire` by `map`, whose result is put where
   it is noted by `list.extend`, or by a `for` before its body begins.
3. What gives back stands in a `finally`, with nothing before it that calls anything; `with lock:`
   of a plain lock obeys that, a context manager written in Python does not.
4. Whoever is woken to do what others wait for, and is struck, wakes the next before it goes.
5. What was done halfway is done again from the start by the next: deliveries, wake-ups, `close` and
   `fail_all` are harmless when repeated.
6. A second interrupt may strike what takes back what the first has left. So where that takes more
   than one step it is done `elsewhere`.

Other threads are never interrupted; they keep to the same law since any thread may be the main one.
"""

from __future__ import annotations

import _thread
import threading
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeVarTuple, Unpack

    Ts = TypeVarTuple("Ts")
else:
    Ts = TypeVar("Ts")

elsewhere: Final = _thread.start_new_thread
"""`elsewhere(task, args)` runs `task(*args)` in a thread of its own, which no interrupt strikes. It
is one call from C, and stands first in an `except BaseException`, before anything else is called.
The task must be short, and raises nothing."""

_NOT_BLOCKING: Final = (False,)
_BLOCKING: Final = (True,)


def if_free(lock: threading.Lock, task: Callable[[Unpack[Ts]], object], *args: Unpack[Ts]) -> bool:
    """Runs `task(*args)` while holding `lock`, if nobody else has it now; whether that was so."""
    is_mine = False
    try:
        for is_mine in map(lock.acquire, _NOT_BLOCKING):  # taken and noted in one step
            if is_mine:
                task(*args)
    finally:
        if is_mine:
            lock.release()
    return is_mine


def when_free(
    lock: threading.Lock,
    seconds: float,
    task: Callable[[Unpack[Ts]], object],
    *args: Unpack[Ts],
) -> bool:
    """The same, for a lock that may be had within that time."""
    held: list[bool] = []
    try:
        take(lock, held, seconds)
        if held:
            task(*args)
    finally:
        if held:
            lock.release()
    return bool(held)


def may_be_interrupt(error: BaseException | None) -> bool:
    """Whether an error that came up while an object of a program was asked for something may be one
    that a signal has brought about, and goes on: those come to the main thread. Elsewhere, or where
    it is an `Exception`, it is the object's own, and must keep nobody waiting."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, Exception)


class _OwnErrorsIgnored:
    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _frames: object) -> bool:
        return not may_be_interrupt(error)


OWN_ERRORS_IGNORED: Final = _OwnErrorsIgnored()
"""In a `with` of it an object of a program is asked for something: what goes on is only what
`may_be_interrupt`."""


def take(lock: threading.Lock, held: list[bool], seconds: float) -> None:
    """Takes `lock` where that is possible within that time: then `held`, which was empty, is not.
    Whoever calls this gives the lock back in a `finally` if so."""
    held.extend(filter(None, map(lock.acquire, _BLOCKING, (seconds,))))
