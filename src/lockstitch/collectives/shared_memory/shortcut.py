"""Operations on small tensors past the table: most programs wait for each before they submit the
next, or submit them in the same order on all ranks, and then the table has nothing to decide. So
small reductions go, barriers, and messages between two ranks.

A rank of which nothing is under way copies its tensor into its *lane* (`lanes`), beside the logs,
and says so by a SUBMIT with the flag SHORT. While that is under way it may say more of them, which
wait behind it. While the next word of every other rank is a SHORT of the same definition as the
first that waits here, all are ready, by the rules of the table; each makes its result of what lies
in the lanes, in the order of ranks. Whatever else comes, from another rank or another thread of
this one, sends all that wait to the table (`LogNegotiation`), which goes on as if they had been
there from the beginning: no word is taken from a log before it is known that all fit.

Of more than two ranks the last to submit leaves the result of a reduction in its lane for those who
come later: a copy takes less than all the sums, and ranks that wait for a processor come later. Who
finds none does not wait for it. A word for each rank says to which of its SHORTs its result
belongs.

Nobody says of an operation for which all ranks have said SHORT that it is done (DONE), in the table
neither: whose places are free again is told by the lanes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from lockstitch.collectives.shared_memory import log
from lockstitch.collectives.shared_memory.lanes import LANE_MASK
from lockstitch.collectives.shared_memory.publishing import LogFullError
from lockstitch.collectives.shared_memory.whole import combined, output_of, reduced
from lockstitch.fences import STORES_ARE_ORDERED, Fence

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lockstitch.collectives.arithmetic import Parts
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.requests import Request
    from lockstitch.collectives.shared_memory.definitions import Definition, Definitions
    from lockstitch.collectives.shared_memory.lanes import Known, Lane, Lanes
    from lockstitch.collectives.shared_memory.log import LogReader
    from lockstitch.collectives.shared_memory.publishing import Publisher

_MOST_KNOWN: Final = 1 << 12
_TOLD_ONE_IN: Final = 256


# What a look at the logs finds.
NOTHING: Final = 0
NEWS: Final = 1
"""More ranks are ready."""
READY: Final = 2
"""All are."""
OTHERWISE: Final = 3
"""Something that the shortcut does not know."""

Waiting = tuple["Handle[Any]", "Definition", int, int]
"""An operation, which SHORT of this rank it is, and the place of its tensor."""


class _Other:
    """Another rank, as the shortcut sees it."""

    __slots__ = ("finished", "index", "known", "lane", "rank", "reader", "ring", "size")

    def __init__(self, rank: int, index: int, reader: LogReader, lane: Lane) -> None:
        self.rank = rank
        self.index = index
        self.reader = reader
        self.ring = reader.ring
        self.size = reader.size
        self.lane = lane
        self.finished = lane.finished
        self.known: dict[int, Known] = {}
        """What its words stand for."""


class Shortcut:
    """See the module; of one rank in one process set. Callers hold the lock of `OpenSets`."""

    def __init__(
        self,
        tails: memoryview,
        readers: Sequence[tuple[int, int, LogReader]],
        definitions: Definitions,
        lanes: Lanes,
        publisher: Publisher,
    ) -> None:
        self.handle: Handle[Any] | None = None
        """The first operation that is under way here, of which the table knows nothing."""
        self.definition: Definition | None = None
        self._behind: deque[Waiting] = deque()
        """The operations behind it, in their order."""
        self._size = len(lanes.of_rank)
        self.tails = tails
        self._definitions = definitions
        self._done = 0
        self.results = lanes.results
        self.serial = self.place = 0
        self.out: torch.Tensor | None = None
        """The result, once others may read it."""
        self.fence = Fence()
        self.lanes = lanes
        self._own = lanes.own
        self._publisher = publisher
        self._position = lanes.position
        self.others = [_Other(*each, lanes.of_rank[each[0]]) for each in readers]
        self._missing = self.others
        self._parts: list[torch.Tensor | None] = [None] * self._size
        self.is_ready = False
        """Whether it has been told that all ranks are ready."""
        self.is_fresh = False
        """Whether nobody has looked for the others in vain since it was submitted."""
        self.quick: Any = None
        """By what the first operation was submitted in few steps (`quick`); None: as others are."""
        self.version = 0
        """How often a rank has given a number another meaning."""
        self.is_changing = False
        """Whether an interrupt now would leave the books in disorder."""

    def submit(self, handle: Handle[Any], definition: Definition, place: int) -> None:
        """Copies the tensor into that place of the lane, which is free, and tells the others.
        Raises `LogFullError`, having done nothing, where there is no room for a word."""
        view = self._own.view(definition, place)
        if view is not None:
            view.copy_(handle.request.tensors[0])
        flags = log.SHORT_SUBMIT if self.handle is None else log.QUEUED_SUBMIT
        if not self.tell(flags | handle.cached.number << 4 | place << 20):
            raise LogFullError
        serial = self.lanes.use(definition, place)
        if self.handle is None:
            self.quick = None
            self.start(handle, definition, serial, place)
        else:
            self._behind.append((handle, definition, serial, place))
        self.is_changing = False

    def tell(self, word: int) -> bool:
        """Tells the others of a SHORT; False, having done nothing, where there is no room for the
        word. Else the books are in disorder until the caller has noted what is under way."""
        self.is_changing = True
        if self._publisher.publish_submission(word):
            return True
        self.is_changing = False
        return False

    def start(self, handle: Handle[Any], definition: Definition, serial: int, place: int) -> None:
        """Waits for the others with that first operation."""
        self.serial = serial
        self.place = place
        self.definition = definition
        self._missing = self.others
        self.out = None
        self.is_ready = False
        self.is_fresh = True
        self.handle = handle

    def has_news(self) -> bool:
        """Whether a look may find anything new for the first operation: the first rank for which it
        waits has told something. May be asked without the lock; without an operation it is True."""
        for first in self._missing:
            return self.handle is None or self.tails[first.index] != first.reader.position
        return True

    @property
    def has_seen_some(self) -> bool:
        """Whether other ranks are ready, of which more words may have come since."""
        return len(self._missing) < len(self.others)

    def look(self) -> int:
        """Whether all ranks are ready, as far as the logs were written."""
        definition, tails = self.definition, self.tails
        assert definition is not None
        parts = self._parts
        missing: list[_Other] = []
        for other in self._missing:
            index = other.index
            position = other.reader.position
            if tails[index] == position:
                missing.append(other)
                continue
            if not STORES_ARE_ORDERED:
                self.fence()
            each = other.ring[position % other.size]
            known = other.known.get(each) or self._learn(other, each)
            if known is None or known[0] is not definition:
                if known is not None:
                    definition.note_other(known[0])
                return OTHERWISE
            place = each >> 20 & LANE_MASK
            part = known[1][place]
            parts[index] = other.lane.view(definition, place) if part is None else part
        if not missing:
            parts[self._position] = self._own.view(definition, self.place)
            return READY
        self.is_fresh = False
        is_news = len(missing) < len(self._missing)
        self._missing = missing
        return NEWS if is_news else NOTHING

    def _learn(self, other: _Other, each: int) -> Known | None:
        if not log.is_short(each):
            return None
        if len(other.known) >= _MOST_KNOWN:
            other.known.clear()
        definition = self._definitions.of(other.rank, each >> 4 & 0xFFFF)
        other.known[each] = known = other.lane.known(definition)
        return known

    def forget(self, rank: int) -> None:
        """That rank gives a number another meaning."""
        self.version += 1
        for other in self.others:
            if other.rank == rank:
                other.known.clear()

    def result(self) -> object:
        """The value of the operation, when all are ready; may be repeated."""
        handle, definition = self.handle, self.definition
        assert handle is not None
        assert definition is not None
        if definition.has_single:
            return self._reduced()
        tensors: Parts = [[] if part is None else [part] for part in self._parts]
        described = [definition.description] * self._size
        return combined(handle, described, tensors, self._position)

    def _reduced(self) -> object:
        handle, definition, out = self.handle, self.definition, self.out
        assert handle is not None
        assert definition is not None
        request = handle.request
        if out is None:
            is_last = self.is_fresh  # they were ready at the first look
            if self._size == 2 or is_last or (out := self._found(request, definition)) is None:
                parts: Any = self._parts
                out = reduced(definition, request, parts, self._size)
                if is_last and self._size > 2:
                    self.leave_result(definition, out)
        return [out] if request.is_group else out

    def _found(self, request: Request, definition: Definition) -> torch.Tensor | None:
        """The result that another rank has left, if one has."""
        results = self.results
        for other in self.others:
            if results[other.index] == other.lane.taken + 1:
                if not STORES_ARE_ORDERED:
                    self.fence()
                place = other.ring[other.reader.position % other.size] >> 20 & LANE_MASK
                return output_of(request).copy_(other.lane.result(definition, place))
        return None

    def leave_result(self, definition: Definition, out: torch.Tensor) -> None:
        """Leaves it in this rank's lane, for others."""
        self._own.result(definition, self.place).copy_(out)
        self.out = out  # before others read what a repetition would write
        if not STORES_ARE_ORDERED:
            self.fence()
        self.results[self._position] = self.serial + 1

    def finish(self) -> None:
        """Tells the others that this rank reads nothing any more of the first operation."""
        if not STORES_ARE_ORDERED:
            self.fence()
        me = self._position
        for other in self.others:
            other.reader.position += 1
            lane = other.lane
            other.finished[me] = lane.taken = lane.taken + 1
        self._own.finished[me] = self.serial + 1

    def end(self) -> Handle[Any]:
        """The first operation is done; returns its handle. The next one takes its place."""
        self.finish()
        return self.note_end()

    def note_end(self) -> Handle[Any]:
        """The same, where the others have been told."""
        handle = self.handle
        assert handle is not None
        self._done += 1
        if not self._done % _TOLD_ONE_IN:
            for other in self.others:
                other.reader.tell()
        self.handle = None
        if self._behind:
            self.quick = None
            self.start(*self._behind.popleft())
        return handle

    def leave(self) -> list[Waiting]:
        """All that wait here, in their order, go on by the table."""
        waiting = [*self._behind]
        self._behind.clear()
        if self.handle is not None:
            assert self.definition is not None
            waiting.insert(0, (self.handle, self.definition, self.serial, self.place))
            self.handle = None
        return waiting
