"""When to stop, and how firmly.

Workers are ended by signals, a grace period apart: SIGINT, so that they may clean up as after a
Ctrl-C of their own, then SIGTERM, then SIGKILL, which nothing survives. This escalation may begin
with a stronger signal, later, or be hurried; it never goes back to a weaker one. Time is asked of a
clock, so that tests own it.
"""

from __future__ import annotations

import signal
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockstitch.clock import seconds_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.clock import Clock

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals by which the launcher itself is told to stop."""

_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_KILL_AGAIN_SECONDS = 0.1


class SignalEscalation:
    """Says which signal is due; none is until `begin` has been called."""

    def __init__(self, grace_seconds: float, clock: Clock) -> None:
        self.grace_seconds = grace_seconds
        self._clock = clock
        self._left = _SIGNALS
        self._next_at: float | None = None
        self.has_signalled = False
        """Whether any signal has been due yet."""

    @property
    def is_begun(self) -> bool:
        """Whether a signal is planned or has been due."""
        return self._next_at is not None

    def begin(self, first: signal.Signals, after_seconds: float) -> None:
        """Plans `first` for then, and what is stronger for later; no effect once begun."""
        if self._next_at is None:
            self._left = _SIGNALS[_SIGNALS.index(first) :]
            self._next_at = self._clock.now() + after_seconds

    def within(self, seconds: float) -> None:
        """Makes a signal that is planned for later due then; no effect once one has been due."""
        if self._next_at is not None and not self.has_signalled:
            self._next_at = min(self._next_at, self._clock.now() + seconds)

    def hurry(self) -> None:
        """Makes the next signal due at once."""
        if self._next_at is not None:
            self._next_at = self._clock.now()

    def seconds_to_next(self) -> float | None:
        """How long to wait for the next signal; None if none is planned."""
        return seconds_until(self._next_at, self._clock)

    def due(self) -> signal.Signals | None:
        """Returns the signal to send now, if its time has come; the next one is then due after a
        grace period."""
        if self.seconds_to_next() != 0:
            return None
        self.has_signalled = True
        now, *stronger = self._left
        # The last signal is repeated: the end of one process may bring to light another, orphaned.
        self._left = tuple(stronger) or (signal.SIGKILL,)
        wait = self.grace_seconds if stronger else _KILL_AGAIN_SECONDS
        self._next_at = self._clock.now() + wait
        return now


@contextmanager
def announced_signals() -> Iterator[socket.socket]:
    """A context manager within which the ends of children, the signals to stop and SIGUSR1
    interrupt nothing: their numbers arrive on the socket that it gives, a byte for each signal.
    SIGHUP does not where somebody has this process ignore it (`nohup`)."""
    numbers = [signal.SIGCHLD, signal.SIGUSR1, *STOP_SIGNALS]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    inbox, outbox = socket.socketpair()
    with inbox, outbox:
        inbox.setblocking(False)
        outbox.setblocking(False)
        previous_handlers = [signal.signal(number, _announced_elsewhere) for number in numbers]
        previous_outbox = signal.set_wakeup_fd(outbox.fileno(), warn_on_full_buffer=False)
        try:
            yield inbox
        finally:
            signal.set_wakeup_fd(previous_outbox)
            for number, handler in zip(numbers, previous_handlers, strict=True):
                signal.signal(number, handler)


def _announced_elsewhere(number: int, frame: object) -> None:
    """Handles a signal by doing nothing: without a handler Python would not write to the socket."""
