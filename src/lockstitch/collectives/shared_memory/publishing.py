"""What this rank tells the others of its process set: words for its log, and who is woken for them.

An interrupt may end any of these calls. Either nothing was told then, or all of it; words of which
the last one counts (so many chunks are there) may be told twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.collectives.shared_memory import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.shared_memory.log import LogWriter
    from lockstitch.collectives.shared_memory.wakeups import Wakeups

# OperationContext in the log that submissions leave to the progress of what is under way.
_RESERVE_WORDS = 1024


class LogFullError(Exception):
    """Raised where another rank must read before this one may submit more."""


class Publisher:
    """Tells what one rank has to say in one process set; `others` are the ranks that may have to be
    woken."""

    def __init__(self, writer: LogWriter, wakeups: Wakeups, others: Sequence[int]) -> None:
        self._writer = writer
        self._wakeups = wakeups
        self._others = others
        self.backlog: list[int] = []
        """Words for which there was no room."""

    @property
    def words_written(self) -> int:
        """How much this rank has told the others."""
        return self._writer.written

    def check_room(self, count: int) -> None:
        """Raises `LogFullError` where a submission of so many words would leave too little room."""
        if self.backlog or not self._writer.has_room(count + _RESERVE_WORDS):
            raise LogFullError

    def publish(self, *words: int) -> None:
        """Writes a record to the log and wakes the others, now or when there is room."""
        if self.backlog or not self._writer.has_room(len(words)):
            self.backlog += words
            return
        self._writer.append(words)
        self._wakeups.wake(self._others)

    def publish_word(self, word: int, is_urgent: bool = True) -> None:
        """Writes a record of one word; wakes nobody for what is not urgent."""
        if self.backlog or not self._writer.append_if_room(word, 0):
            self.backlog.append(word)
            return
        if is_urgent:
            self._wakeups.wake(self._others)

    def publish_submission(self, word: int) -> bool:
        """The same for one word that submits something; False, having done nothing, where
        `check_room` would raise."""
        if self.backlog or not self._writer.append_if_room(word, _RESERVE_WORDS):
            return False
        self._wakeups.wake(self._others)
        return True

    def publish_leave(self, reason: str, is_death: bool) -> None:
        """Tells, last of all, why this rank's session ends, and whether by another one's death."""
        self.publish(*log.leave_record(reason.encode(), is_death))

    def flush(self) -> None:
        """Writes the backlog to the log, if there is room by now."""
        if self._writer.has_room(len(self.backlog)):
            backlog, self.backlog = self.backlog, []
            self._writer.append(backlog)
            self._wakeups.wake(self._others)
