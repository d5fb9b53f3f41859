"""The process sets of one rank's session: one look at all of their logs, and their common end.

Whoever calls anything here holds `lock`, or takes it for the moment: one thread at a time reads the
logs and performs operations. Nothing here waits for another rank.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from lockstitch.collectives.requests import Kind
from lockstitch.collectives.shared_memory.log_negotiation import LogNegotiation
from lockstitch.errors import CollectiveError, RankLostError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.shared_memory.segment import Segment
    from lockstitch.collectives.shared_memory.wakeups import Wakeups
    from lockstitch.memory.arena import Arena

_LOOK_SECONDS = 1.0


class OpenSets:
    """The process sets in which `rank` takes part."""

    def __init__(
        self,
        rank: int,
        segment: Segment,
        arena: Arena,
        pending: PendingOperations,
        wakeups: Wakeups,
    ) -> None:
        self.lock = threading.RLock()
        self._rank = rank
        self._segment = segment
        self._arena = arena
        self._pending = pending
        self._wakeups = wakeups
        self._open: dict[int, LogNegotiation] = {}
        self._closing: list[LogNegotiation] = []
        """Closed, but others may still be reading what this rank has put there."""
        self._all: tuple[LogNegotiation, ...] = ()
        self.has_left = False
        """Whether the session has ended here, and the other ranks have been told."""
        self.turns = 0
        """How often somebody has looked at the logs."""

    @property
    def words_written(self) -> int:
        """How much this rank has told the others."""
        return sum(each.words_written for each in self._open.values())

    @property
    def is_idle(self) -> bool:
        """Whether this rank has nothing under way in the open sets."""
        return all(each.is_idle for each in self._open.values())

    @property
    def is_changing(self) -> bool:
        """Whether an interrupt now would leave the books of some set in disorder."""
        return any(each.is_changing for each in self._all)

    def open(self, process_set: ProcessSet) -> None:
        """Begins to read the logs of that set."""
        with self.lock:
            self._open[process_set.id] = LogNegotiation(
                process_set, self._rank, self._segment, self._arena, self._pending, self._wakeups
            )
            self._gather()

    def close(self, process_set: ProcessSet) -> None:
        """Submits nothing more in that set; harmless when it is not open."""
        with self.lock:
            closed = self._open.pop(process_set.id, None)
            if closed is not None:
                self._closing.append(closed)
            self._gather()

    def _gather(self) -> None:
        self._closing = [each for each in self._closing if not each.is_idle]
        self._all = (*self._open.values(), *self._closing)

    # ------------------------------------------------------------ working

    def submit(self, handle: Handle[Any]) -> bool:
        """Tells the others of an operation; see `LogNegotiation.submit`. Holds the lock."""
        return self._open[handle.request.process_set].submit(handle)

    def may_have_news(self, handle: Handle[Any]) -> bool:
        """Whether a turn may find anything new, as far as can be told without the lock. Not where
        `handle` is all that is under way, in the shortcut, and the first rank for which it waits
        has told nothing."""
        if len(self._pending.handles) != 1:
            return True
        found = self._open.get(handle.request.process_set)
        return found is None or found.has_news(handle)

    def turn(self, *, is_thorough: bool = False) -> bool:
        """One look at all logs, under the lock; whether anything was new. Thoroughly: before the
        tables are asked what other ranks do."""
        self.turns += 1
        is_news = False
        death: RankLostError | None = None
        try:
            for each in self._all:
                if each.advance(is_thorough=is_thorough):
                    is_news = True
                death = death or each.death  # told now, or where something was submitted
                if each.gone and self._tell_of(each.gone):
                    is_news = True
        except BaseException as error:
            if isinstance(error, Exception) or self.is_changing:
                self.end(error)
            raise
        if death is not None:
            self.end(death)
        return is_news

    def _tell_of(self, gone: dict[int, str]) -> bool:
        """Tells all sets of ranks that have told one of them that their session has ended: those
        may have come to an end before they came to the others. Whether that was new."""
        is_news = False
        for rank, reason in list(gone.items()):
            for each in self._all:
                if each.note_gone(rank, reason):
                    is_news = True
        return is_news

    # ------------------------------------------------------------ being asked

    def is_wanted(self) -> bool:
        """Whether other ranks wait for an operation that this one has not submitted."""
        with self.lock:
            self._look_thoroughly()
            return any(each.table.wants(self._rank) for each in self._all)

    def wanted(self) -> list[tuple[str, tuple[int, ...]]]:
        """The names of those operations, and who has submitted them; looks at the logs before."""
        with self._looking() as is_looking:
            tables = [each.table for each in self._all] if is_looking else []
            return [
                (waiting.name, waiting.submitted)
                for table in tables
                for waiting in table.waiting()
                if self._rank in waiting.missing
            ]

    def missing(self, handle: Handle[Any]) -> tuple[int, ...] | None:
        """The ranks that an operation waits for; looks at the logs before. None where that is not
        found out."""
        with self._looking() as is_looking:
            found = self._open.get(handle.request.process_set) if is_looking else None
            if found is None:
                return None
            is_join = handle.request.kind is Kind.JOIN
            return found.table.not_joined() if is_join else found.missing(handle.name)

    def known_missing(self, handle: Handle[Any]) -> tuple[int, ...]:
        """The same, without waiting for who works."""
        with self.lock:
            self._look_thoroughly()
            found = self._open.get(handle.request.process_set)
            return found.missing(handle.name) if found else ()

    def _look_thoroughly(self) -> None:
        if not self.has_left:
            self.turn(is_thorough=True)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[bool]:
        """Has looked at all logs; False where somebody else works for long."""
        if not self.lock.acquire(timeout=_LOOK_SECONDS):
            yield False
            return
        try:
            self._look_thoroughly()
            yield True
        finally:
            self.lock.release()

    # ------------------------------------------------------------ the end

    def note_deaths(self, dead: list[int]) -> None:
        """The processes of these ranks have ended: the session ends, unless they had left."""
        with self.lock:
            self.turn(is_thorough=True)  # what they had finished is finished
            lost = [rank for rank in dead if self._wakeups.is_watched(rank)]
            if lost:
                names = self._pending.names
                place = f"on {names.here}, " if names.here else ""  # they share its memory
                seen = f"({place}seen by {names.one(self._rank)})"
                self.end(RankLostError(f"{names.in_words(lost)} died {seen}"))

    def end(self, error: BaseException) -> None:
        """Ends the session with that error: here, and for the others."""
        with self.lock:
            if not isinstance(error, CollectiveError):
                me = self._pending.names.one(self._rank)
                error = CollectiveError(
                    f"the session ended when {me} could not do its part: {error!r}"
                )
            self._pending.break_off(error)
            self.leave(str(error), is_by_death=isinstance(error, RankLostError))

    def leave(self, reason: str = "", *, is_by_death: bool = False) -> None:
        """Tells the others, in each set once, that this rank takes no further part."""
        with self.lock:
            self.has_left = True
            for each in self._open.values():
                each.leave(reason, is_by_death)
