"""One process set, as one of its ranks sees it: its log and the others', the table that they fill,
and the operations that are being performed.

Nothing here waits, and nothing is locked: the backend lets one thread in at a time.

An interrupt (Ctrl-C) may be raised at any call. In an operation's step, where nearly all the time
goes, it is put off until the books are in order again, and the step is done again later. Elsewhere
(`is_changing`) nobody can tell what was done: then the session ends.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from lockstitch.collectives.events import Step
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
from lockstitch.collectives.shared_memory.definitions import (
    Definition,
    Definitions,
    chunk_bytes_for,
    in_place_bytes_for,
)
from lockstitch.collectives.shared_memory.in_place import InPlace
from lockstitch.collectives.shared_memory.log import LogReader, LogWriter, word
from lockstitch.collectives.shared_memory.operations import NOWHERE, Operation, Part
from lockstitch.collectives.shared_memory.publishing import Publisher
from lockstitch.collectives.shared_memory.routes import agreed, prepared
from lockstitch.collectives.shared_memory.whole import Whole
from lockstitch.errors import RankLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.requests import Request
    from lockstitch.collectives.shared_memory.segment import Segment
    from lockstitch.collectives.shared_memory.wakeups import Wakeups
    from lockstitch.memory.arena import Arena


class Channel:
    """See the module."""

    def __init__(
        self,
        process_set: ProcessSet,
        rank: int,
        segment: Segment,
        arena: Arena,
        pending: PendingOperations,
        wakeups: Wakeups,
    ) -> None:
        self.process_set = process_set
        self.rank = rank
        self.segment = segment
        self.chunk_bytes = chunk_bytes_for(process_set.size, segment.geometry.arena_bytes)
        self._in_place_bytes = in_place_bytes_for(process_set.size)
        self.table = Negotiation(process_set.ranks)
        self._arena = arena
        self._arena_begins = segment.arena_begins
        self._arena_begin = segment.arena_begins[rank]
        self._pending = pending
        self._wakeups = wakeups
        self._position = process_set.position(rank)
        self._definitions = Definitions()
        self._current: dict[tuple[int, int], Part] = {}
        """The latest operation under each number of another rank."""
        self._active: list[Operation] = []
        self._announced: deque[Submitted] = deque()
        """What the others have been told, and this rank's own table will be told in the next turn
        (`Request.is_deferred`)."""
        self._still_read: set[Operation] = set()
        """Over for this rank, but others still read what it has put there."""
        self._joining: Handle[Any] | None = None
        self._gone: dict[int, RankLostError] = {}
        """Who has left, and what those hear who wait for something of theirs."""
        self._most_words = segment.geometry.log_words // 4
        self._tails, writer, self._readers = self._open_logs()
        others = [each for each in process_set.ranks if each != rank]
        self._publisher = Publisher(writer, wakeups, others)
        self.is_changing = False
        """Whether an interrupt now would leave the books in disorder."""
        self._interrupt: BaseException | None = None
        """What has ended a step, and is raised when the books are in order."""
        self._is_behind = False
        """Whether steps are to be done that were interrupted."""
        self.death: RankLostError | None = None
        """Of some rank, as another one tells it."""

    def _open_logs(
        self,
    ) -> tuple[memoryview, LogWriter, list[tuple[int, int, LogReader]]]:
        segment, set_id, count = self.segment, self.process_set.id, self.process_set.size
        tails = segment.tails(set_id, count)
        me = self._position
        cursors = [segment.cursors(set_id, writer, count) for writer in range(count)]
        own = LogWriter(segment.log(set_id, me), tails, cursors[me], me)
        readers = [
            (rank, index, LogReader(segment.log(set_id, index), tails, cursors[index], index, me))
            for index, rank in enumerate(self.process_set.ranks)
            if index != me
        ]
        return tails, own, readers

    @property
    def words_written(self) -> int:
        """How much this rank has told the others."""
        return self._publisher.words_written

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that this rank has submitted."""
        return not self._active and not self._still_read and not self._announced

    # ------------------------------------------------------------ submitting

    def submit(self, handle: Handle[Any]) -> None:
        """Copies what is to be copied, and tells the others. Raises `ArenaFullError` or
        `LogFullError`, having done nothing, where there is no room yet."""
        if handle.request.kind is Kind.JOIN:
            self._join(handle)
            return
        cached = handle.cached
        definition: Definition | None = cached.note
        news: list[int] = []
        if definition is None:
            definition = self._definitions.intern(cached.description.encode())
            news = log.definition(cached.number, definition.content)
        self._check_room(len(news) + 1, handle.request)
        operation, place, flags = prepared(self, handle, definition, self._in_place_bytes)
        self.is_changing = True
        offset = place - self._arena_begin if place != NOWHERE else 0
        if news:
            self._publisher.publish(*news)
            cached.note = definition
        self._publisher.publish_word(word(log.SUBMIT, cached.number, offset | flags))
        part = Part(self.rank, definition, place, bool(flags))
        part.operation = operation
        submitted = Submitted(self.rank, definition.description, part)
        if handle.request.is_deferred:
            self._announced.append(submitted)
            self.is_changing = False
            return
        if self._announced:
            self._take_in_own()
        self._follow(self.table.handle(submitted))
        if self._active:
            self._step_all()
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
        self._follow(self.table.handle(Joined(self.rank, now)))
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
            if self._active:
                self._step_all()
            self._end_changes()
        return is_news

    def _end_changes(self) -> None:
        # Without a call in between, so that no other interrupt can separate them.
        interrupt, self._interrupt = self._interrupt, None
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
                self._done(self._current[rank, number])
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
        self._follow(self.table.handle(Submitted(rank, definition.description, part)))

    def _done(self, part: Part) -> None:
        if part.is_done:
            return
        part.is_done = True
        operation = part.operation
        if operation is not None:
            operation.unread -= 1
            if operation.unread == 0 and operation in self._still_read:
                self._release(operation)

    def _left(self, rank: int, reason: str, is_by_death: bool) -> None:
        self._wakeups.forget(rank)
        if is_by_death:  # the session ends here as well, when what the dead had told is taken in
            self.death = self.death or RankLostError(reason)
            return
        text = reason or f"rank {rank} shut down before it had done its part"
        self._gone[rank] = RankLostError(text)
        self._step_all()  # with what it had said before
        for operation in list(self._active):
            if self._is_orphaned(operation):
                self._active.remove(operation)
        for operation in list(self._still_read):
            for part in operation.present:
                if part.rank == rank:
                    self._done(part)
        self._follow(self.table.handle(Left(rank)))

    def _is_orphaned(self, operation: Operation) -> bool:
        """Whether it fails, since a rank has left that owes it something."""
        for part in operation.present:
            error = self._gone.get(part.rank)
            if error is not None and operation.owes(part):
                self._pending.fail(operation.handle, error)
                self._keep_until_read(operation)
                return True
        return False

    # ------------------------------------------------------------ doing

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Perform):
                self._begin(instruction)
            elif isinstance(instruction, AllJoined):
                handle, self._joining = self._joining, None
                if handle is not None:
                    self._pending.complete(handle, instruction.last)
            elif self.rank in instruction.parts:
                operation = instruction.parts[self.rank].note.operation
                self._pending.fail(operation.handle, error_of(instruction))
                self._release(operation)

    def _begin(self, ready: Perform) -> None:
        if self.rank not in ready.parts:  # it has joined, and the others go on without it
            return
        operation: Operation = ready.parts[self.rank].note.operation
        if self._pending.observers.progress is not None:
            self._pending.tell(operation.handle, Step.READY)
        present: list[Part] = [each.note for each in ready.parts.values()]
        operation = agreed(operation, present)
        unread = 0
        for part in present:
            unread += not part.is_done
            part.operation = operation
        operation.unread = unread - 1  # this rank's own part is not done
        parts: list[Part | None] = [*present]
        if len(present) < self.process_set.size:
            parts = [
                ready.parts[rank].note if rank in ready.parts else None
                for rank in self.process_set.ranks
            ]
        operation.begin(parts, present, self._position)
        if isinstance(operation, Whole):
            if not self._step(operation):
                self._active.append(operation)
        elif not self._gone or not self._is_orphaned(operation):
            self._active.append(operation)

    def _step_all(self) -> None:
        for operation in list(self._active):
            if self._step(operation):
                self._active.remove(operation)

    def _step(self, operation: Operation) -> bool:
        if self._interrupt is not None:
            return False
        try:
            is_over = operation.step(self)
        except Exception as error:
            if not isinstance(operation, Whole):
                raise  # the others wait for what this rank cannot give: the session is over
            self._pending.fail(operation.handle, error)
            self._keep_until_read(operation)
            return True
        except BaseException as interrupt:  # noqa: BLE001 - raised by `_end_changes`
            self._interrupt = interrupt
            return False
        if is_over:
            self._keep_until_read(operation)
            self._pending.complete(operation.handle, operation.result())
        return is_over

    def _keep_until_read(self, operation: Operation) -> None:
        """This rank's part is over; others may still read what it has put there."""
        if isinstance(operation, InPlace):
            self._release(operation)  # each reads its own part only, at the end
            return
        if operation.request.tensors:
            self._publisher.publish_word(
                word(log.DONE, operation.handle.cached.number), is_urgent=False
            )
        if operation.unread == 0:
            self._release(operation)
        else:
            self._still_read.add(operation)

    def _release(self, operation: Operation) -> None:
        self._still_read.discard(operation)
        self.give_back(operation)
        operation.end()

    # ------------------------------------------------------------ for operations
    # An interrupt may end these, too: they tell first and note that they have afterwards.

    def take(self, operation: Operation, size: int) -> int:
        place = self._arena.take(size)
        operation.held.append(place)
        return self._arena_begin + place

    def give_back(self, operation: Operation) -> None:
        for place in operation.held:
            self._arena.give_back(place)
        operation.held = []

    def tell_progress(self, operation: Operation, count: int) -> None:
        self._publisher.publish_word(word(log.SLICE_DONE, operation.handle.cached.number, count))
        self._own_part(operation).produced = count

    def tell_reduced(self, operation: Operation, count: int) -> None:
        self._publisher.publish_word(word(log.REDUCED, operation.handle.cached.number, count))
        self._own_part(operation).reduced = count

    def tell_place(self, operation: Operation, place: int) -> None:
        offset = place - self._arena_begin
        self._publisher.publish_word(word(log.PLACE, operation.handle.cached.number, offset))
        self._own_part(operation).whole_place = place

    def _own_part(self, operation: Operation) -> Part:
        part = operation.parts[self._position]
        assert part is not None
        return part

    # ------------------------------------------------------------ the end

    def leave(self, reason: str, is_by_death: bool) -> None:
        """The last word; see `Publisher.publish_leave`."""
        self._publisher.publish_leave(reason, is_by_death)

    def missing(self, name: str) -> tuple[int, ...]:
        """Whom this rank waits for."""
        return self.table.missing(name, self.rank)
