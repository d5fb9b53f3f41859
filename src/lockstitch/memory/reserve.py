"""Descriptors kept back for what must be received, even where a process may open no more files.

A descriptor that somebody sends us is lost where there is no number free for it, and a tensor's
memory with it. So a few numbers are taken before they are needed, as long as anybody may need them,
and given free for the moment in which one arrives.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Final

from lockstitch.forks import abandon_in_child

if TYPE_CHECKING:
    from collections.abc import Iterator

_COUNT: Final = 2
"""One for the descriptor, one for the file that is opened to map what it stands for."""


class Reserve:
    """The reserve of one worker, there while somebody `hold`s it."""

    def __init__(self) -> None:
        # Reentrant, because a destructor may let go while this very thread is inside.
        self._lock = threading.RLock()
        self._holders = 0
        self._kept: list[int] = []
        abandon_in_child(self)

    def __len__(self) -> int:
        return len(self._kept)

    def hold(self) -> None:
        """There is one more who may need it."""
        with self._lock:
            self._holders += 1
            self._fill()

    def let_go(self) -> None:
        """There is one less."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                self._empty()

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Within it, the descriptors that were kept back are free. Others may be quicker to take
        them; what is then missing is taken back when there is room again."""
        with self._lock:
            self._empty()
            try:
                yield
            finally:
                self._fill()

    def abandon(self) -> None:
        """A forked child has no use for its copies."""
        self._empty()

    def _fill(self) -> None:
        with contextlib.suppress(OSError):  # there are none now
            while self._holders and len(self._kept) < _COUNT:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _empty(self) -> None:
        while self._kept:
            os.close(self._kept.pop())
