"""The interpreter ends: threads that run users' functions end before it, or stand still.

A program may exit without `shutdown`, and a function that somebody called may run for ever. When
the interpreter is taken down, a thread that wants to go on in Python is ended below its frames, and
where one of those is C++ of torch's, that aborts the process ("terminate called without an active
exception"). So before, while all is still in order, every such thread gets a `SystemExit`, which
ends it wherever it runs Python code. One that does not run sleeps in a call of the system, most
likely for longer than the process has to live; only one that computes is waited for, a little.
On a busy machine that may not be enough; whoever is ended inside C++ all the same then stands still
for the moments that the process still has, which are few even if the main thread is the one.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_PATIENCE_SECONDS: Final = 2.0
_MAIN_PATIENCE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.005
_STILL_LOOKS: Final = 8
_LOOKS_BETWEEN: Final = 5
_CLOCK_FIELDS: Final = slice(11, 13)


def end_threads(
    threads: Iterable[threading.Thread], patience_seconds: float = _PATIENCE_SECONDS
) -> None:
    """Ends threads, whatever they run, except those that sleep. Returns when all have ended or are
    asleep, or when the time is over. Time in which this process did not run itself, or hardly, does
    not count: the threads had no chance then either."""
    asked = [each for each in threads if each is not threading.current_thread()]
    left = {each: _Sleep() for each in asked}
    looks = 0
    while left and looks * _LOOK_SECONDS < patience_seconds:
        looks += 1
        if looks % _LOOKS_BETWEEN == 0:  # not at once: most are about to end by themselves
            for thread in left:
                interrupt(thread)
        threading.Event().wait(_LOOK_SECONDS)
        left = {
            thread: sleep
            for thread, sleep in left.items()
            if thread.is_alive() and not sleep.is_sound(thread)
        }
    if any(thread.is_alive() for thread in asked):
        stand_still_instead_of_aborting()


def stand_still_instead_of_aborting(patience_seconds: float = _MAIN_PATIENCE_SECONDS) -> None:
    """From now on a thread that C++ would abort the process for only waits. So does the main
    thread, but until `patience_seconds` from now at most: else the process would hang."""
    with contextlib.suppress(OSError, AttributeError):  # another system: it aborts, as before
        libc, libcxx = ctypes.CDLL(None), ctypes.CDLL("libstdc++.so.6")
        set_terminate = libcxx._ZSt13set_terminatePFvvE  # std::set_terminate(void (*)())
        set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
        set_terminate(ctypes.cast(libc.pause, ctypes.c_void_p))
        if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            # A signal ends a pause; this one goes to the main thread, and does nothing else.
            libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], None
            libc.signal(signal.SIGALRM, ctypes.cast(libc.getpid, ctypes.c_void_p))
            signal.setitimer(signal.ITIMER_REAL, patience_seconds)


def interrupt(thread: threading.Thread) -> None:
    """Raises `SystemExit` in a thread, as soon as it runs Python code."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
        )


class _Sleep:
    """Whether a thread has slept at several looks in a row, and used no time between them."""

    def __init__(self) -> None:
        self._looks = 0
        self._used: list[str] | None = None

    def is_sound(self, thread: threading.Thread) -> bool:
        """Looks once more."""
        try:
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        except OSError:  # it has ended, or this is another system
            return False
        fields = stat.rpartition(")")[2].split()
        used = fields[_CLOCK_FIELDS]
        self._looks = self._looks + 1 if fields[0] == "S" and used == self._used else 0
        self._used = used
        return self._looks >= _STILL_LOOKS
