"""The interpreter ends: threads that run users' functions end before it, or stand still.

A program may exit without `shutdown`, and a function that somebody called may run for ever. When
the interpreter is taken down, a thread that wants to go on in Python is ended below its frames, and
where one of those is C++ of torch's, that aborts the process ("terminate called without an active
exception"). So before, while all is still in order, every such thread gets a `SystemExit`, which
ends it wherever it runs Python code. One that does not run sleeps in a call of the system, and is
kept asleep where that matters; only one that computes is waited for, a little.
On a busy machine that may not be enough; whoever is ended inside C++ all the same then stands still
for the moments that the process still has.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

_TIMEOUT_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.005
_STILL_LOOKS: Final = 8
_LOOKS_BETWEEN: Final = 5
_CLOCK_FIELDS: Final = slice(11, 13)
_TORCH: Final = str(Path(torch.__file__).parent)
_ALL: Final = (2 ** (8 * ctypes.sizeof(ctypes.c_ulong)) - 1,) * 16
_ENTRIES: Final = ("run_engine",)
"""Functions of ours that call into torch's engine without any Python of torch's between."""


class _Action(ctypes.Structure):
    """The C library's `struct sigaction`: the handler, and which signals it holds back."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def end_threads(
    threads: Iterable[threading.Thread], timeout_seconds: float = _TIMEOUT_SECONDS
) -> list[threading.Thread]:
    """Ends threads, whatever they run, except those that sleep, which it returns: when all have
    ended or are asleep, or when the time is over. Time in which this process itself was stopped
    does not count: the threads had no chance then either."""
    asked = [each for each in threads if each is not threading.current_thread()]
    left = {each: _Sleep() for each in asked}
    looks = 0
    while left and looks * _LOOK_SECONDS < timeout_seconds:
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
    remaining = [thread for thread in asked if thread.is_alive()]
    if remaining:
        stand_still_instead_of_aborting()
    return [thread for thread in remaining if thread not in left]


def keep_asleep(threads: Iterable[threading.Thread]) -> None:
    """Those of threads that sleep in a function which torch has called (in a backward pass, or as
    a callback) go on sleeping until the process ends, whatever they sleep for.

    One that woke while the interpreter is taken down would be ended below torch's C++, and what
    that does on the way out takes the interpreter away from the main thread, which then crashes.
    """
    frames = sys._current_frames()
    with contextlib.suppress(OSError, AttributeError):  # another system: they may wake, as before
        number = signal.SIGRTMAX
        if signal.getsignal(number) is signal.SIG_DFL:
            libc = ctypes.CDLL(None)
            # Every other signal is held back meanwhile: it would end the pause.
            action = _Action(ctypes.cast(libc.pause, ctypes.c_void_p), (ctypes.c_ulong * 16)(*_ALL))
            libc.sigaction(number, ctypes.byref(action), None)
            for thread in threads:
                if thread.ident in frames and _is_below_torch(frames[thread.ident]):
                    signal.pthread_kill(thread.ident, number)


def _is_below_torch(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code.co_filename.startswith(_TORCH) or frame.f_code.co_name in _ENTRIES:
            return True
        frame = frame.f_back
    return False


def stand_still_instead_of_aborting() -> None:
    """From now on a thread that C++ would abort the process for only waits."""
    with contextlib.suppress(OSError, AttributeError):  # another system: it aborts, as before
        libc, libcxx = ctypes.CDLL(None), ctypes.CDLL("libstdc++.so.6")
        set_terminate = libcxx._ZSt13set_terminatePFvvE  # std::set_terminate(void (*)())
        set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
        set_terminate(ctypes.cast(libc.pause, ctypes.c_void_p))


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
        """Looks once more; whether the thread has slept at so many looks that it sleeps soundly."""
        try:
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        except OSError:  # it has ended, or this is another system
            return False
        fields = stat.rpartition(")")[2].split()
        used = fields[_CLOCK_FIELDS]
        self._looks = self._looks + 1 if fields[0] == "S" and used == self._used else 0
        self._used = used
        return self._looks >= _STILL_LOOKS
