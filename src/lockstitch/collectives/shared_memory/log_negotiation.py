"""The negotiation of one process set by logs in shared memory: this rank writes what it does into
its log and reads those of the others, and a table of all of it says what is to be performed.

Nothing here waits, and nothing is locked: `open_sets` lets one thread in at a time.

An interrupt (Ctrl-C) may be raised at any call. In an operation's step it is kept until the books
are in order (`performing`). Elsewhere, while `is_changing`, nobody can tell what was done: then the
session ends.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from lockstitch.collectives.negotiation import (
    AllJoined,
    Instruction,
    Joined,
    Left,
    Negotiation,
    Perform,
    Submitted,
)
from lockstitch.collectives.outcomes import error_of
from lockstitch.collectives.requests import Kind
from lockstitch.collectives.shared_memory import log
from lockstitch.collectives.shared_memory.definitions import Definitions, in_place_bytes_for
from lockstitch.collectives.shared_memory.log import LogReader, LogWriter, word
from lockstitch.collectives.shared_memory.operations import NOWHERE, Part
from lockstitch.collectives.shared_memory.performing import Performer
from lockstitch.collectives.shared_memory.publishing import Publisher
from lockstitch.collectives.shared_memory.routes import prepared
from lockstitch.errors import RankLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.requests import Request
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.segment import Segment
    from lockstitch.collectives.shared_memory.wakeups import Wakeups
    from lockstitch.memory.arena import Arena


class LogNegotiation:
    """What `rank` knows and tells of the operations of `process_set`."""

    def __init__(
        self,
        process_set: ProcessSet,
        rank: int,
        segment: Segment,
        arena: Arena,
        pending: PendingOperations,
        wakeups: Wakeups,
    ) -> None:
        self._rank = rank
        self._in_place_bytes = in_place_bytes_for(process_set.size)
        self.table = Negotiation(process_set.ranks, pending.names)
        self._arena_begins = segment.arena_begins
        self._arena_begin = segment.arena_begins[rank]
        self._pending = pending
        self._wakeups = wakeups
        self._definitions = Definitions()
        self._current: dict[tuple[int, int], Part] = {}
        """The latest operation under each number of another rank; the key is the rank and the
        number."""
        self._announced: deque[Submitted] = deque()
        """What the others have been told, and this rank's own table will be told in the next turn
        (`Request.is_deferred`)."""
        self._joining: Handle[Any] | None = None
        self._most_words = segment.geometry.log_words // 4
        self._tails, writer, self._readers = _open_logs(segment, process_set, rank)
        others = [each for each in process_set.ranks if each != rank]
        self._publisher = Publisher(writer, wakeups, others)
        self._performer = Performer(process_set, rank, segment, arena, pending, self._publisher)
        self.is_changing = False
        """Whether an interrupt now would leave the books in disorder."""
        self._is_behind = False
        """Whether an interrupt has ended steps that are still to be done."""
        self.death: RankLostError | None = None
        """The error that ends the session, if another rank has said that one has died."""

    @property
    def words_written(self) -> int:
        """How much this rank has told the others."""
        return self._publisher.words_written

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that this rank has submitted."""
        return self._performer.is_idle and not self._announced

    # ------------------------------------------------------------ submitting

    def submit(self, handle: Handle[Any]) -> None:
        """Copies the tensors to where the others can read them, and tells of the operation. Raises
        `ArenaFullError` or `LogFullError`, having done nothing, where there is no room yet."""
        if handle.request.kind is Kind.JOIN:
            self._join(handle)
            return
        cached = handle.cached
        definition: Definition | None = cached.note
        introduction: list[int] = []
        if definition is None:
            definition = self._definitions.intern(cached.description.encode())
            introduction = log.definition(cached.number, definition.content)
        self._check_room(len(introduction) + 1, handle.request)
        performer = self._performer
        operation, place, flags = prepared(performer, handle, definition, self._in_place_bytes)
        self.is_changing = True
        offset = place - self._arena_begin if place != NOWHERE else 0
        if introduction:
            self._publisher.publish(*introduction)
            cached.note = definition
        self._publisher.publish_word(word(log.SUBMIT, cached.number, offset | flags))
        part = Part(self._rank, definition, place, bool(flags))
        part.operation = operation
        submitted = Submitted(self._rank, definition.description, part)
        if handle.request.is_deferred:
            self._announced.append(submitted)
            self.is_changing = False
            return
        if self._announced:
            self._take_in_own()
        self._follow(self.table.handle(submitted))
        if performer.under_way:
            performer.step_all()
        self._end_changes()

    def _take_in_own(self) -> None:
        while self._announced:
            self._follow(self.table.handle(self._announced.popleft()))

    def _join(self, handle: Handle[Any]) -> None:
        self._check_room(1, handle.request)
        self.is_changing = True
        self._take_in_own()
        self._joining = handle
        now = time.monotonic_ns()
        self._publisher.publish_word(log.JOIN | now << 4)
        self._follow(self.table.handle(Joined(self._rank, now)))
        self._end_changes()

    def _check_room(self, count: int, request: Request) -> None:
        if count > self._most_words:
            raise ValueError(
                f"{request.name!r}: a group of {len(request.tensors)} tensors is too long to be "
                "told to the other ranks; make several groups of it"
            )
        self._publisher.check_room(count)

    # ------------------------------------------------------------ reading

    def advance(self) -> bool:
        """Reads what is new and does what can be done; whether anything was new."""
        if self._publisher.backlog:
            self.is_changing = True
            self._publisher.flush()
            self.is_changing = False
        is_news = self._is_behind
        if self._announced:
            self.is_changing = is_news = True
            self._take_in_own()
        tails = self._tails
        for rank, index, reader in self._readers:
            if tails[index] != reader.position:
                self.is_changing = is_news = True
                self._take_in(rank, reader.read())
        if is_news:
            self.is_changing = True
            if self._performer.under_way:
                self._performer.step_all()
            self._end_changes()
        return is_news

    def _end_changes(self) -> None:
        # Without a call in between, so that no other interrupt can separate them.
        interrupt, self._performer.interrupt = self._performer.interrupt, None
        self._is_behind = interrupt is not None
        self.is_changing = False
        if interrupt is not None:
            raise interrupt

    def _take_in(self, rank: int, words: Sequence[int]) -> None:
        at = 0
        while at < len(words):
            each = words[at]
            what, number, argument = each & 15, (each >> 4) & 0xFFFF, each >> 20
            at += 1
            if what == log.SUBMIT:
                self._submitted(rank, number, argument)
            elif what == log.SLICE_DONE:
                self._current[rank, number].produced = argument
            elif what == log.REDUCED:
                self._current[rank, number].reduced = argument
            elif what == log.DONE:
                self._performer.note_done(self._current[rank, number])
            elif what == log.DEFINE:
                content, at = log.content(words, at - 1)
                self._definitions.learn(rank, number, content)
            elif what == log.PLACE:
                place = self._arena_begins[rank] + argument
                self._current[rank, number].whole_place = place
            elif what == log.JOIN:
                self._follow(self.table.handle(Joined(rank, each >> 4)))
            elif what == log.LEAVE:
                reason, at = log.content(words, at - 1)
                self._left(rank, reason.decode(), bool(argument & log.BY_DEATH))

    def _submitted(self, rank: int, number: int, argument: int) -> None:
        definition = self._definitions.of(rank, number)
        offset = argument & log.PLACE_MASK
        place = self._arena_begins[rank] + offset if offset else NOWHERE
        part = Part(rank, definition, place, bool(argument & log.RESIDENT))
        self._current[rank, number] = part
        if ready := self.table.handle(Submitted(rank, definition.description, part)):
            self._follow(ready)

    def _left(self, rank: int, reason: str, is_by_death: bool) -> None:
        self._wakeups.forget(rank)
        if is_by_death:  # the session ends here as well, when what the dead had told is taken in
            self.death = self.death or RankLostError(reason)
            return
        text = reason or f"{self._pending.names.one(rank)} shut down before it had done its part"
        self._performer.lose(rank, RankLostError(text))
        self._follow(self.table.handle(Left(rank)))

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        performer = self._performer
        for instruction in instructions:
            if isinstance(instruction, Perform):
                performer.begin(instruction)
            elif isinstance(instruction, AllJoined):
                handle, self._joining = self._joining, None
                if handle is not None:
                    self._pending.complete(handle, instruction.last)
            elif self._rank in instruction.parts:
                operation = instruction.parts[self._rank].note.operation
                performer.give_up(operation, error_of(instruction))

    # ------------------------------------------------------------ the end, and being asked

    def leave(self, reason: str, is_by_death: bool) -> None:
        """Tells the others that this rank takes no further part, and why. Nothing is told after."""
        self._publisher.publish_leave(reason, is_by_death)

    def missing(self, name: str) -> tuple[int, ...]:
        """The ranks that have not submitted the operation of that name, which this one has."""
        return self.table.missing(name, self._rank)


def _open_logs(
    segment: Segment, process_set: ProcessSet, rank: int
) -> tuple[memoryview, LogWriter, list[tuple[int, int, LogReader]]]:
    """The tails of all logs, the writer of this rank's own log, and for each other rank itself, its
    position and the reader of its log."""
    set_id, count, me = process_set.id, process_set.size, process_set.position(rank)
    tails = segment.tails(set_id, count)
    cursors = [segment.cursors(set_id, writer, count) for writer in range(count)]
    own = LogWriter(segment.log(set_id, me), tails, cursors[me], me)
    readers = [
        (other, index, LogReader(segment.log(set_id, index), tails, cursors[index], index, me))
        for index, other in enumerate(process_set.ranks)
        if index != me
    ]
    return tails, own, readers
