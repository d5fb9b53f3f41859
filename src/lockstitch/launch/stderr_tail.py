"""What a worker said last on stderr, which is repeated in the end when it has failed."""

from __future__ import annotations

from collections import deque
from typing import Final

_REMEMBERED_LINES: Final = 60
_LINES_OF_A_CRASH: Final = 400
_TRACEBACK: Final = b"Traceback (most recent call last):"
_CRASH: Final = b"Fatal Python error: "
_LINES_WITHOUT_TRACEBACK: Final = 15


class StderrTail:
    """The last lines of a worker's stderr. A crash is kept from its beginning, with the stacks of
    many threads: the first lines say what it was."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_REMEMBERED_LINES)
        self._crash: list[bytes] = []

    def add(self, line: bytes) -> None:
        """Adds a line."""
        self._lines.append(line)
        if line.startswith(_CRASH):
            self._crash = [line]
        elif self._crash and len(self._crash) < _LINES_OF_A_CRASH:
            self._crash.append(line)

    def telling(self) -> list[bytes]:
        """Returns the crash or the traceback among the lines, with all that follows; the last few
        lines where there is none."""
        lines = self._crash or list(self._lines)
        if not self._crash and _TRACEBACK in lines:
            return lines[lines.index(_TRACEBACK) :]
        return lines if self._crash else lines[-_LINES_WITHOUT_TRACEBACK:]
