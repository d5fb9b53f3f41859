"""A thread that looks after operations for which nobody waits.

Programs submit, go on computing, and wait later. Most of that is moved on by later submissions. But
a rank that only computes would hold up others that need its chunks. So while anything is under way
a thread looks every 2 ms, and if nobody has driven since the last look it does so itself, until
somebody wants to. When nothing was under way for a while it sleeps and takes no time at all.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Protocol

_TICK_SECONDS = 2e-3
_IDLE_TICKS = 25


class Driven(Protocol):
    """What it looks after."""

    @property
    def turns(self) -> int:
        """Grows whenever somebody drives."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        ...

    def drive_unattended(self) -> None:
        """Drives until somebody else wants to, or nothing is under way."""
        ...


class BackgroundDriver:
    """The thread; it begins with the first operation that is not done at once."""

    def __init__(self, name: str, driven: Driven) -> None:
        self._name = name
        # The two know each other; without a cycle the segment is unmapped as soon as it may be.
        self._driven: Driven = weakref.proxy(driven)
        self.is_parked = True
        self._is_closed = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.is_driving = False

    def look_after(self) -> None:
        """Something is under way."""
        if self.is_parked and not self._is_closed:
            self.is_parked = False
            with self._lock:
                if self._thread is None and not self._is_closed:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
            self._wake.set()

    def close(self) -> None:
        """Ends the thread, which must not be driving for long any more."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        # A session that was dropped without a shutdown has nothing left to look after.
        with contextlib.suppress(ReferenceError):
            self._look()

    def _look(self) -> None:
        idle_ticks = 0
        turns = -1
        while not self._is_closed:
            if idle_ticks >= _IDLE_TICKS:
                self._park()
                idle_ticks = 0
            self._wake.clear()
            self._wake.wait(_TICK_SECONDS)
            if not self._driven.is_busy:
                idle_ticks += 1
                continue
            idle_ticks = 0
            if turns == self._driven.turns:
                self._drive()
            turns = self._driven.turns

    def _park(self) -> None:
        # Said first, looked at afterwards: a submission in between ends it.
        self._wake.clear()
        self.is_parked = True
        if not self._driven.is_busy and not self._is_closed:
            self._wake.wait()
        self.is_parked = False

    def _drive(self) -> None:
        self.is_driving = True
        try:
            self._driven.drive_unattended()
        finally:
            self.is_driving = False
