"""The negotiation of one process set by logs in shared memory: this rank writes what it does into
its log and reads those of the others, and a table of all of it says what is to be performed.

Nothing here waits, and nothing is locked: `open_sets` lets one thread in at a time.

A small operation that is alone takes the shortcut (`shortcut`), past the table, and comes into it
when it is not alone any more.

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
from lockstitch.collectives.shared_memory.lanes import LANE_MASK, Lanes
from lockstitch.collectives.shared_memory.log import LogReader, LogWriter, word
from lockstitch.collectives.shared_memory.operations import NOWHERE, Part
from lockstitch.collectives.shared_memory.performing import Performer
from lockstitch.collectives.shared_memory.publishing import Publisher
from lockstitch.collectives.shared_memory.quick import quicken
from lockstitch.collectives.shared_memory.routes import prepared
from lockstitch.collectives.shared_memory.shortcut import NEWS, NOTHING, OTHERWISE, READY, Shortcut
from lockstitch.collectives.shared_memory.whole import Whole
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
        self._most_unread = segment.geometry.log_words // 8
        self._tails, writer, self._readers = _open_logs(segment, process_set, rank)
        others = [each for each in process_set.ranks if each != rank]
        self._publisher = Publisher(writer, wakeups, others)
        self._lanes = lanes = Lanes(process_set, rank, segment)
        self._performer = Performer(process_set, segment, arena, pending, self._publisher, lanes)
        self._shortcut = Shortcut(
            self._tails, self._readers, self._definitions, lanes, self._publisher
        )
        self._is_changing = False
        self._is_behind = False
        """Whether an interrupt has ended steps that are still to be done."""
        self._has_left = False
        self.gone: dict[int, str] = {}
        """The ranks that have said that their session has ended, and why."""
        self.death: RankLostError | None = None
        """The error that ends the session, if another rank has said that one has died."""

    @property
    def words_written(self) -> int:
        """How much this rank has told the others."""
        return self._publisher.words_written

    @property
    def is_changing(self) -> bool:
        """Whether an interrupt now would leave the books in disorder."""
        return self._is_changing or self._shortcut.is_changing

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that this rank has submitted."""
        return self._performer.is_idle and not self._announced

    # ------------------------------------------------------------ submitting

    def submit(self, handle: Handle[Any]) -> bool:
        """Copies the tensors to where the others can read them, and tells of the operation; whether
        one should look at the logs at once. Raises `ArenaFullError` or `LogFullError`, having
        done nothing, where there is no room yet."""
        cached = handle.cached
        shortcut, quick, request = self._shortcut, cached.quick, handle.request
        if (
            quick is not None
            and shortcut.handle is None
            and not self.table.is_waiting
            and self._is_alone()
            and request.outputs is request.tensors
            and not request.is_deferred
            and quick.submit(shortcut, handle)
        ):
            return not self._end_quickly() and not request.is_awaited
        definition: Definition | None = cached.note
        place = -1
        if definition is not None and definition.is_short and not request.is_deferred:
            place = self._lanes.free_place(definition)
        if shortcut.handle is not None and place < 0:
            self._look_down_shortcut()  # after which all may be over
            if shortcut.handle is not None:
                self._leave_shortcut()
        elif place >= 0 and (shortcut.handle is not None or self._is_alone()):
            return self._take_shortcut(handle, cached.note, place)
        if request.kind is Kind.JOIN:
            self._join(handle)
            return True
        introduction: list[int] = []
        if definition is None:
            definition = self._definitions.intern(cached.description.encode())
            introduction = log.definition(cached.number, definition.content)
        self._check_room(len(introduction) + 1, request)
        performer = self._performer
        operation, place, flags = prepared(performer, handle, definition, self._in_place_bytes)
        self._is_changing = True
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
            self._is_changing = False
            return False
        if self._announced:
            self._take_in_own()
        self._follow(self.table.handle(submitted))
        if performer.under_way:
            performer.step_all()
        self._end_changes()
        return True

    def _take_in_own(self) -> None:
        while self._announced:
            self._follow(self.table.handle(self._announced.popleft()))

    def _join(self, handle: Handle[Any]) -> None:
        self._check_room(1, handle.request)
        self._is_changing = True
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

    # ------------------------------------------------------------ the shortcut

    def has_news(self, handle: Handle[Any]) -> bool:
        """Whether a look may find anything new for an operation (`OpenSets.may_have_news`)."""
        shortcut = self._shortcut
        return shortcut.handle is not handle or shortcut.has_news()

    def _is_alone(self) -> bool:
        """Whether nothing that this rank has submitted is under way."""
        table = self.table
        return (
            table.is_plain
            and not (table.is_waiting and table.has_part(self._rank))
            and not self._performer.under_way
            and not self._announced
            and not self._is_behind
        )

    def _take_shortcut(self, handle: Handle[Any], definition: Definition, number: int) -> bool:
        """Submits there, and looks whether all others have done so before; whether one should look
        at the logs at once."""
        shortcut = self._shortcut
        shortcut.submit(handle, definition, number)
        if self.table.is_waiting:
            self._leave_shortcut()
            return True
        if not shortcut.has_news():
            shortcut.is_fresh = False
        elif self._look_down_shortcut() is None:
            return True
        return not handle.request.is_awaited and shortcut.handle is not None

    def _leave_shortcut(self) -> None:
        """What is under way there goes on by the table, as if it had never been elsewhere."""
        performer = self._performer
        self._is_changing = True
        for handle, definition, serial, number in self._shortcut.leave():
            place = self._lanes.own.place(definition, number)
            self._lanes.own.hold(serial)
            part = Part(self._rank, definition, place, is_resident=False, serial=serial)
            part.operation = Whole(handle, definition)
            self._follow(self.table.handle(Submitted(self._rank, definition.description, part)))
        if performer.under_way:
            performer.step_all()
        self._end_changes()

    def _look_down_shortcut(self) -> bool | None:
        """Whether anything was new; None where what waited there has gone to the table."""
        shortcut, is_news = self._shortcut, False
        if shortcut.quick is not None and self._end_quickly():
            return True
        while (found := shortcut.look()) == READY:
            is_news = True
            if not self._end_first():
                return None
            if shortcut.handle is None:
                return True
        if found == OTHERWISE and self._read():
            is_news = True
            if not self.table.is_waiting and self.table.is_plain:
                found = shortcut.look()
            self._end_changes()
            if found == READY:
                return True if self._end_first() else None
        if found == OTHERWISE or (
            found == NOTHING and shortcut.has_seen_some and self._is_far_behind()
        ):
            self._leave_shortcut()
            return None
        return is_news or found == NEWS

    def _end_first(self) -> bool:
        """All are ready for the first operation in the shortcut: it ends there; False where it
        could not, and all have gone to the table."""
        shortcut = self._shortcut
        handle, definition = shortcut.handle, shortcut.definition
        assert handle is not None
        assert definition is not None
        if not shortcut.is_ready:
            shortcut.is_ready = True
            self._pending.note_ready(handle)
            if definition.is_quick:
                quicken(shortcut)
        try:
            result = shortcut.result()
        except Exception:  # noqa: BLE001 - it is this rank's alone: raised there once more
            self._leave_shortcut()
            return False
        self._is_changing = True
        self._pending.complete(shortcut.end(), result)
        self._is_changing = False
        return True

    def _end_quickly(self) -> bool:
        """The same in fewer steps, if all are ready, for what was submitted so."""
        shortcut, pending = self._shortcut, self._pending
        quick = shortcut.quick
        out = None if quick is None else quick.end(shortcut)
        if out is None:
            return False
        handle = shortcut.note_end()
        pending.note_ready(handle)
        pending.complete(handle, [out] if handle.request.is_group else out)
        shortcut.is_changing = False
        return True

    # ------------------------------------------------------------ reading

    def advance(self, *, is_thorough: bool = False) -> bool:
        """Reads what is new and does what can be done; whether anything was new. Thoroughly: reads
        also what can wait until this rank submits something."""
        is_news = self._shortcut.handle is not None
        if is_news:
            if is_thorough:
                self._leave_shortcut()
            elif (is_new := self._look_down_shortcut()) is not None:
                return is_new
        if self._publisher.backlog:
            self._is_changing = True
            self._publisher.flush()
            self._is_changing = False
        if self._is_behind:
            is_news = True
        if self._announced:
            self._is_changing = is_news = True
            self._take_in_own()
        if self._read(is_thorough=is_thorough):
            is_news = True
        if is_news:
            self._is_changing = True
            if self._performer.under_way:
                self._performer.step_all()
            self._end_changes()
        return is_news

    def _end_changes(self) -> None:
        # Without a call in between, so that no other interrupt can separate them.
        interrupt, self._performer.interrupt = self._performer.interrupt, None
        self._is_behind = interrupt is not None
        self._is_changing = False
        if interrupt is not None:
            raise interrupt

    def _read(self, *, is_thorough: bool = False) -> bool:
        """Reads the logs; whether there was anything. What ranks submit by SHORTs can be left there
        until this one submits something, too: so the next operation finds them where the shortcut
        looks, unless so much lies behind them that the writer may wait for room. Before such a word
        of a rank that has other parts in the table the logs of the others are read, for it says
        that these have been decided."""
        tails, is_news = self._tails, False
        is_more = True
        while is_more:
            is_more = False
            for rank, index, reader in self._readers:
                if tails[index] != reader.position and (
                    is_thorough or not self._can_wait(rank, reader.peek()) or self._is_far_behind()
                ):
                    self._is_changing = is_news = is_more = True
                    self._take_in(rank, reader, is_thorough)
        return is_news

    def _is_far_behind(self) -> bool:
        """Whether some rank has written much that was not read here."""
        tails, most = self._tails, self._most_unread
        for _, index, reader in self._readers:  # noqa: SIM110 - no generator: asked at every look
            if tails[index] - reader.position > most:
                return True
        return False

    def _can_wait(self, rank: int, word: int) -> bool:
        """Whether a word of that rank can be left in its log."""
        table = self.table
        return (
            log.is_short(word)
            and table.is_plain
            and (not table.is_waiting or (not log.is_queued(word) and table.has_part(rank)))
        )

    def _take_in(self, rank: int, reader: LogReader, is_thorough: bool) -> None:
        words = reader.read()
        at = 0
        while at < len(words):
            each = words[at]
            if at and not is_thorough and self._can_wait(rank, each):
                reader.position -= len(words) - at
                break
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
                self._shortcut.forget(rank)
            elif what == log.PLACE:
                place = self._arena_begins[rank] + argument
                self._current[rank, number].whole_place = place
            elif what == log.JOIN:
                self._follow(self.table.handle(Joined(rank, each >> 4)))
            elif what == log.LEAVE:
                reason, at = log.content(words, at - 1)
                self._left(rank, reason.decode(), bool(argument & log.BY_DEATH))
        reader.tell()

    def _submitted(self, rank: int, number: int, argument: int) -> None:
        definition = self._definitions.of(rank, number)
        if argument & log.SHORT:
            lane = self._lanes.of_rank[rank]
            place = lane.place(definition, argument & LANE_MASK)
            part = Part(rank, definition, place, False, lane.take())
        else:
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
        self.gone[rank] = reason
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
            else:
                performer.refuse(instruction.parts, error_of(instruction))

    # ------------------------------------------------------------ the end, and being asked

    def leave(self, reason: str, is_by_death: bool) -> None:
        """Tells the others, once, that this rank takes no further part, and why. Nothing is told
        after."""
        if not self._has_left:
            self._publisher.publish_leave(reason, is_by_death)
            self._has_left = True

    def note_gone(self, rank: int, reason: str) -> bool:
        """Takes note that the session of a rank has ended, which has said so in another set: there
        is nothing to come here either. Whether that was new."""
        if not self.table.expects(rank):
            return False
        self.advance(is_thorough=True)  # what it had told before
        if self.table.expects(rank):
            self._is_changing = True
            self._left(rank, reason, is_by_death=False)
            self._end_changes()
        return True

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
