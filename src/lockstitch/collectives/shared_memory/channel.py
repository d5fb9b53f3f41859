"""One process set, as one of its ranks sees it: its log and the others', the table that they fill,
and the operations that are being performed.

Nothing here waits, and nothing is locked: the backend lets one thread in at a time.
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
from lockstitch.collectives.shared_memory.in_chunks import InChunks
from lockstitch.collectives.shared_memory.in_place import InPlace
from lockstitch.collectives.shared_memory.log import LogReader, LogWriter, word
from lockstitch.collectives.shared_memory.operations import NOWHERE, Operation, Part
from lockstitch.collectives.shared_memory.whole import Whole
from lockstitch.errors import RankLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.outstanding import Outstanding
    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.requests import Request
    from lockstitch.collectives.shared_memory.arena import Arena
    from lockstitch.collectives.shared_memory.bells import Bells
    from lockstitch.collectives.shared_memory.segment import Segment

# Room in the log that submissions leave to the progress of what is under way.
_RESERVE_WORDS = 1024


class LogFullError(Exception):
    """Another rank must read before this one may submit more."""


class Channel:
    """See the module."""

    def __init__(
        self,
        process_set: ProcessSet,
        rank: int,
        segment: Segment,
        arena: Arena,
        outstanding: Outstanding,
        bells: Bells,
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
        self._outstanding = outstanding
        self._bells = bells
        self._position = process_set.position(rank)
        self._others = [each for each in process_set.ranks if each != rank]
        self._definitions = Definitions()
        self._current: dict[tuple[int, int], Part] = {}
        """The latest operation under each number of another rank."""
        self._active: list[Operation] = []
        self._announced: deque[Submitted] = deque()
        """What the others have been told, and this rank's own table will be told in the next turn
        (`Request.is_deferred`)."""
        self._lingering: set[Operation] = set()
        """Over for this rank, but others still read what it has put there."""
        self._joining: Handle[Any] | None = None
        self._owed: list[int] = []
        """Words for which there was no room."""
        self._most_words = segment.geometry.log_words // 4
        self._tails, self._writer, self._readers = self._open_logs()

    def _open_logs(
        self,
    ) -> tuple[memoryview, LogWriter, list[tuple[int, int, LogReader]]]:
        segment, set_id, count = self.segment, self.process_set.id, self.process_set.size
        tails = segment.tails(set_id, count)
        me = self._position
        cursors = [segment.cursors(set_id, writer, count) for writer in range(count)]
        own = LogWriter(segment.log(set_id, me), tails, cursors[me], me, self._bells.fence)
        readers = [
            (rank, index, LogReader(segment.log(set_id, index), tails, cursors[index], index, me))
            for index, rank in enumerate(self.process_set.ranks)
            if index != me
        ]
        return tails, own, readers

    @property
    def words_written(self) -> int:
        """How much this rank has told the others."""
        return self._writer.written

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that this rank has submitted."""
        return not self._active and not self._lingering and not self._announced

    # ------------------------------------------------------------ submitting

    def submit(self, handle: Handle[Any]) -> None:
        """Copies what is to be copied, and tells the others. Raises `ArenaFullError` or
        `LogFullError`, having done nothing, where there is no room yet."""
        if handle.request.kind is Kind.JOIN:
            self._join(handle)
            return
        form = handle.form
        definition: Definition | None = form.note
        news: list[int] = []
        if definition is None:
            definition = self._definitions.intern(form.description.encode())
            news = log.definition(form.number, definition.content)
        self._check_room(len(news) + 1, handle.request)
        operation, place, flags = self._prepare(handle, definition)
        offset = place - self._arena_begin if place != NOWHERE else 0
        if news:
            self._say(*news)
            form.note = definition
        self._say_one(word(log.SUBMIT, form.number, offset | flags))
        part = Part(self.rank, definition, place, bool(flags))
        part.operation = operation
        submitted = Submitted(self.rank, definition.description, part)
        if handle.request.is_deferred:
            self._announced.append(submitted)
            return
        if self._announced:
            self._take_in_own()
        self._follow(self.table.handle(submitted))
        if self._active:
            self._step_all()

    def _take_in_own(self) -> None:
        while self._announced:
            self._follow(self.table.handle(self._announced.popleft()))

    def _join(self, handle: Handle[Any]) -> None:
        self._check_room(1, handle.request)
        self._take_in_own()
        self._joining = handle
        now = time.monotonic_ns()
        self._say_one(log.JOIN | now << 4)
        self._follow(self.table.handle(Joined(self.rank, now)))

    def _check_room(self, count: int, request: Request) -> None:
        if count > self._most_words:
            raise ValueError(
                f"{request.name!r}: a group of {len(request.tensors)} tensors is too long to be "
                "told to the other ranks; make several groups of it"
            )
        if self._owed or not self._writer.has_room(count + _RESERVE_WORDS):
            raise LogFullError

    def _prepare(self, handle: Handle[Any], definition: Definition) -> tuple[Operation, int, int]:
        """The operation, where its tensors are, and flags for the log."""
        request = handle.request
        is_one = definition.has_single or (request.is_packed and definition.is_uniform)
        if is_one and definition.layout.size >= self._in_place_bytes:
            place = self._resident_place(request)
            if place != NOWHERE:
                return InPlace(handle, definition), place, log.RESIDENT
        if definition.is_large:
            chunked = InChunks(handle, definition)
            return chunked, chunked.prepare(self), 0
        whole = Whole(handle, definition)
        return whole, whole.prepare(self, self.rank), 0

    def _resident_place(self, request: Request) -> int:
        """Where a tensor lives that can be reduced where it lies."""
        reduction = request.reduction
        if not request.outputs:
            return NOWHERE
        tensor = request.tensors[0]
        address = tensor.data_ptr()
        begin = address - self.segment.address - self._arena_begin
        if (
            not 0 <= begin < self.segment.geometry.arena_bytes
            or request.outputs[0].data_ptr() != address
            or not tensor.is_contiguous()
            or not request.outputs[0].is_contiguous()
            or reduction is None
            or reduction.prescale != 1.0
        ):
            return NOWHERE
        return self._arena_begin + begin

    # ------------------------------------------------------------ reading

    def advance(self) -> bool:
        """Reads what is new and does what can be done; whether anything was new."""
        if self._owed:
            self._pay()
        is_news = False
        if self._announced:
            self._take_in_own()
            is_news = True
        tails = self._tails
        for rank, index, reader in self._readers:
            if tails[index] != reader.position:
                self._take_in(rank, reader.read())
                is_news = True
        if is_news and self._active:
            self._step_all()
        return is_news

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
                content, at = log.definition_content(words, at - 1)
                self._definitions.learn(rank, number, content)
            elif what == log.PLACE:
                place = self._arena_begins[rank] + argument
                self._current[rank, number].whole_place = place
            elif what == log.JOIN:
                self._follow(self.table.handle(Joined(rank, each >> 4)))
            elif what == log.LEAVE:
                self._left(rank)

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
            if operation.unread == 0 and operation in self._lingering:
                self._release(operation)

    def _left(self, rank: int) -> None:
        self._bells.forget(rank)
        error = RankLostError(f"rank {rank} shut down before it had done its part")
        self._step_all()  # with what it had said before
        for operation in list(self._active):
            if any(part.rank == rank and operation.owes(part) for part in operation.present):
                self._active.remove(operation)
                self._outstanding.fail(operation.handle, error)
                self._linger(operation)
        for operation in list(self._lingering):
            for part in operation.present:
                if part.rank == rank:
                    self._done(part)
        self._follow(self.table.handle(Left(rank)))

    # ------------------------------------------------------------ doing

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Perform):
                self._begin(instruction)
            elif isinstance(instruction, AllJoined):
                handle, self._joining = self._joining, None
                if handle is not None:
                    self._outstanding.complete(handle, instruction.last)
            elif self.rank in instruction.parts:
                operation = instruction.parts[self.rank].note.operation
                self._outstanding.fail(operation.handle, error_of(instruction))
                self._release(operation)

    def _begin(self, ready: Perform) -> None:
        if self.rank not in ready.parts:  # it has joined, and the others go on without it
            return
        operation: Operation = ready.parts[self.rank].note.operation
        if self._outstanding.observers.progress is not None:
            self._outstanding.tell(operation.handle, Step.READY)
        present: list[Part] = [each.note for each in ready.parts.values()]
        is_resident = False
        unread = 0
        for part in present:
            is_resident |= part.is_resident
            unread += not part.is_done
        if is_resident:
            operation = self._in_place(operation)
        for part in present:
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
            self._step(operation)
        else:
            self._active.append(operation)

    def _in_place(self, operation: Operation) -> Operation:
        """Some tensor lives in an arena: so all of them shall."""
        if isinstance(operation, InPlace):
            return operation
        converted = InPlace(operation.handle, operation.definition)
        converted.held = operation.held
        return converted

    def _step_all(self) -> None:
        for operation in list(self._active):
            if self._step(operation):
                self._active.remove(operation)

    def _step(self, operation: Operation) -> bool:
        try:
            is_over = operation.step(self)
        except Exception as error:
            if not isinstance(operation, Whole):
                raise  # the others wait for what this rank cannot give: the session is over
            self._outstanding.fail(operation.handle, error)
            self._linger(operation)
            return True
        if is_over:
            self._linger(operation)
            self._outstanding.complete(operation.handle, operation.result())
        return is_over

    def _linger(self, operation: Operation) -> None:
        """This rank's part is over; others may still read what it has put there."""
        if isinstance(operation, InPlace):
            self._release(operation)  # each reads its own part only, at the end
            return
        if operation.request.tensors:
            self._say_one(word(log.DONE, operation.handle.form.number), is_urgent=False)
        if operation.unread == 0:
            self._release(operation)
        else:
            self._lingering.add(operation)

    def _release(self, operation: Operation) -> None:
        self._lingering.discard(operation)
        for place in operation.held:
            self._arena.give_back(place)
        operation.end()

    # ------------------------------------------------------------ for operations

    def take(self, operation: Operation, size: int) -> int:
        place = self._arena.take(size)
        operation.held.append(place)
        return self._arena_begin + place

    def tell_progress(self, operation: Operation, count: int) -> None:
        self._own_part(operation).produced = count
        self._say_one(word(log.SLICE_DONE, operation.handle.form.number, count))

    def tell_reduced(self, operation: Operation, count: int) -> None:
        self._own_part(operation).reduced = count
        self._say_one(word(log.REDUCED, operation.handle.form.number, count))

    def tell_place(self, operation: Operation, place: int) -> None:
        self._own_part(operation).whole_place = place
        offset = place - self._arena_begin
        self._say_one(word(log.PLACE, operation.handle.form.number, offset))

    def _own_part(self, operation: Operation) -> Part:
        part = operation.parts[self._position]
        assert part is not None
        return part

    # ------------------------------------------------------------ saying

    def leave(self) -> None:
        """The last word."""
        self._say_one(word(log.LEAVE))

    def _say(self, *words: int) -> None:
        if self._owed or not self._writer.has_room(len(words)):
            self._owed += words
            return
        self._writer.append(words)
        self._bells.ring(self._others)

    def _say_one(self, word: int, is_urgent: bool = True) -> None:
        if self._owed or not self._writer.has_room(1):
            self._owed.append(word)
            return
        self._writer.append_one(word)
        if is_urgent:
            self._bells.ring(self._others)

    def _pay(self) -> None:
        count = len(self._owed)
        if self._writer.has_room(count):
            owed, self._owed = self._owed, []
            self._writer.append(owed)
            self._bells.ring(self._others)

    def missing(self, name: str) -> tuple[int, ...]:
        """Whom this rank waits for."""
        return self.table.missing(name, self.rank)
