"""The pipes out of processes that a loop follows: read as something comes, to the end."""

from __future__ import annotations

import array
import fcntl
import os
import selectors
import termios
from functools import partial
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pipes:
    """Has a loop that sleeps in `selector` read them; each is closed at its end."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._open: dict[IO[bytes], Callable[[], int]] = {}
        """Those that are not closed, and what takes what waits in them."""
        self._is_held = False

    def __repr__(self) -> str:
        return f"<Pipes · {len(self._open)} open{' · held' * self._is_held}>"

    def follow(self, pipe: IO[bytes], take: Callable[[bytes], object]) -> None:
        """Has `take` called with whatever comes out of it."""
        os.set_blocking(pipe.fileno(), False)
        self._open[pipe] = read = partial(self._read, pipe, take)
        if not self._is_held:
            self._selector.register(pipe, selectors.EVENT_READ, read)

    def finish(self, pipe: IO[bytes]) -> None:
        """Takes what waits in the pipe of a process that has ended, and closes it; harmless when it
        is closed. An orphan may hold it open, or even write to it, for ever: what comes from now on
        is nobody's."""
        read = self._open.get(pipe)
        if read is not None:
            waiting = array.array("i", [0])
            fcntl.ioctl(pipe.fileno(), termios.FIONREAD, waiting)
            left = waiting[0]
            while left > 0 and (count := read()):
                left -= count
            self._close(pipe)

    def hold(self, is_held: bool) -> None:
        """Reads no more, so that who writes will wait; or goes on with it."""
        if self._is_held != is_held:
            self._is_held = is_held
            for pipe, read in self._open.items():
                if is_held:
                    self._selector.unregister(pipe)
                else:
                    self._selector.register(pipe, selectors.EVENT_READ, read)

    def _read(self, pipe: IO[bytes], take: Callable[[bytes], object]) -> int:
        """Takes what waits; returns how many bytes, 0 also when nothing will come any more."""
        try:
            chunk = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return 0
        if chunk:
            take(chunk)
        else:
            self._close(pipe)
        return len(chunk)

    def _close(self, pipe: IO[bytes]) -> None:
        if self._open.pop(pipe, None) is not None:
            if not self._is_held:
                self._selector.unregister(pipe)
            pipe.close()
