"""The operations of one process set that this rank performs, from the moment at which all ranks are
ready until nobody reads any more what this rank has put into its arena.

    begin ──► under way ──► over for this rank ──► read by all: its room is given back
              (steps)       (`_still_read`)

Nothing here waits: an operation does at each step what it can, and is called again when another
rank has told something. An interrupt (Ctrl-C) that comes in a step, where nearly all the time goes,
is kept until the books are in order again, and the step is done again later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.collectives.shared_memory import log
from lockstitch.collectives.shared_memory.definitions import chunk_bytes_for
from lockstitch.collectives.shared_memory.in_place import InPlace
from lockstitch.collectives.shared_memory.log import word
from lockstitch.collectives.shared_memory.routes import agreed
from lockstitch.collectives.shared_memory.whole import Whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockstitch.collectives.negotiation import Perform, Submitted
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.shared_memory.lanes import Lanes
    from lockstitch.collectives.shared_memory.operations import Operation, Part
    from lockstitch.collectives.shared_memory.publishing import Publisher
    from lockstitch.collectives.shared_memory.segment import Segment
    from lockstitch.errors import RankLostError
    from lockstitch.memory.arena import Arena


class Performer:
    """Performs the operations of `process_set` on one rank; it is their `OperationContext`."""

    def __init__(
        self,
        process_set: ProcessSet,
        segment: Segment,
        arena: Arena,
        pending: PendingOperations,
        publisher: Publisher,
        lanes: Lanes,
    ) -> None:
        self.rank = rank = lanes.rank
        self.segment = segment
        self.chunk_bytes = chunk_bytes_for(process_set.size, segment.geometry.arena_bytes)
        self.ranks = process_set.ranks
        self._position = lanes.position
        self._arena = arena
        self._arena_begin = segment.arena_begins[rank]
        self._pending = pending
        self._publisher = publisher
        self._lanes = lanes
        self.under_way: list[Operation] = []
        self._still_read: set[Operation] = set()
        """Operations that are over for this rank, while others still read what it has put there."""
        self._lost: dict[int, RankLostError] = {}
        """Who has left, and the error of whoever waits for something of theirs."""
        self.interrupt: BaseException | None = None
        """What has ended a step. Nothing goes on until the caller has taken it from here, which
        raises it when the books are in order."""

    @property
    def is_idle(self) -> bool:
        """Whether this rank neither performs anything nor keeps anything for others to read."""
        return not self.under_way and not self._still_read

    # ------------------------------------------------------------ from beginning to end

    def begin(self, ready: Perform) -> None:
        """Begins an operation that all ranks are ready for."""
        if self.rank not in ready.parts:  # it has joined, and the others go on without it
            self._lanes.finish(each.note for each in ready.parts.values())
            return
        operation: Operation = ready.parts[self.rank].note.operation
        self._pending.note_ready(operation.handle)
        present: list[Part] = [each.note for each in ready.parts.values()]
        operation = agreed(operation, present)
        unread = -1  # this rank's own part is not done
        short = 0
        for part in present:
            unread += not part.is_done
            short += part.serial >= 0
            part.operation = operation
        operation.unread = unread
        operation.is_short = short == len(self.ranks)
        parts: Sequence[Part | None] = present
        if len(present) < len(self.ranks):
            parts = [ready.parts[rank].note if rank in ready.parts else None for rank in self.ranks]
        operation.begin(self, parts, present, self._position)
        if isinstance(operation, Whole):
            if not self._step(operation):
                self.under_way.append(operation)
        elif not self._lost or not self._is_orphaned(operation):
            self.under_way.append(operation)

    def step_all(self) -> None:
        """Goes on with everything that is under way."""
        for operation in list(self.under_way):
            if self._step(operation):
                self.under_way.remove(operation)

    def note_done(self, part: Part) -> None:
        """Takes note that the rank of that part reads nothing more of the operation."""
        if part.is_done:
            return
        part.is_done = True
        operation = part.operation
        if operation is not None:
            operation.unread -= 1
            if operation.unread == 0 and operation in self._still_read:
                self._release(operation)

    def refuse(self, parts: Mapping[int, Submitted], error: BaseException) -> None:
        """Fails an operation that was never begun, of which these are the parts: the ranks do not
        agree about it."""
        self._lanes.finish(each.note for each in parts.values())
        if self.rank in parts:
            operation: Operation = parts[self.rank].note.operation
            self._pending.fail(operation.handle, error)
            self._release(operation)

    def lose(self, rank: int, error: RankLostError) -> None:
        """That rank has left: what waits for more than it has told fails with `error`, and it
        reads nothing more."""
        self._lost[rank] = error
        self.step_all()  # with what it had told before
        for operation in list(self.under_way):
            if self._is_orphaned(operation):
                self.under_way.remove(operation)
        for operation in list(self._still_read):
            for part in operation.present:
                if part.rank == rank:
                    self.note_done(part)

    def _is_orphaned(self, operation: Operation) -> bool:
        """Whether it fails, since a rank has left that owes it something."""
        for part in operation.present:
            error = self._lost.get(part.rank)
            if error is not None and operation.owes(part):
                self._pending.fail(operation.handle, error)
                self._keep_until_read(operation)
                return True
        return False

    def _step(self, operation: Operation) -> bool:
        if self.interrupt is not None:
            return False
        try:
            is_over = operation.step(self)
        except Exception as error:
            if not operation.fails_alone:
                raise  # the others wait for what this rank cannot give: the session is over
            self._pending.fail(operation.handle, error)
            self._keep_until_read(operation)
            return True
        except BaseException as interrupt:  # noqa: BLE001 - raised when the books are in order
            self.interrupt = interrupt
            return False
        if is_over:
            self._keep_until_read(operation)
            self._pending.complete(operation.handle, operation.result())
        return is_over

    def _keep_until_read(self, operation: Operation) -> None:
        """Ends this rank's part; what it has put there stays while others may still read it."""
        self._lanes.finish(operation.present)
        if isinstance(operation, InPlace) or operation.is_short or not operation.request.tensors:
            # Each reads its own part only, at the end; of what lies in lanes others have just been
            # told; or there is nothing to read.
            self._release(operation)
            return
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
        """See `OperationContext`, as for all that follow."""
        place = self._arena.take(size)
        operation.held = (*operation.held, place)
        return self._arena_begin + place

    def give_back(self, operation: Operation) -> None:
        for place in operation.held:
            self._arena.give_back(place)
        operation.held = ()

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
