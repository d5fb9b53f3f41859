"""Waking a thread that waits for a connection: because of something else than bytes."""

from __future__ import annotations

import contextlib
import os
import threading

from lockstitch.forks import abandon_in_child


class Waker:
    """A descriptor that becomes readable by `release`: it may stand where a lock does that a
    sleeper waits for."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False
        abandon_in_child(self)

    def release(self) -> None:
        """Wakes whoever waits, or else the next to do so."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self.descriptor, 1)

    def drain(self) -> None:
        """Forgets earlier wakings. Look at what was waited for *after* this."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Gives the descriptor back; harmless when repeated. Close the connection first."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)

    def abandon(self) -> None:
        """Closes a forked child's copy."""
        if not self._closed:
            self._closed = True
            os.close(self.descriptor)
