"""One operation on a small tensor at a time, past the table: most programs wait for each before
they submit the next, and then the table has nothing to decide. So small reductions go, barriers,
and messages between two ranks.

A rank of which nothing is under way copies its tensor into its *lane*, beside the logs, and says so
by a SUBMIT with the flag SHORT. While the next word of every other rank is a SHORT of the same
definition, all are ready, by the rules of the table; each makes its result of what lies in the
lanes, in the order of ranks. Whatever else comes, from another rank or another thread of this one,
sends the operation to the table (`LogNegotiation`), which goes on as if it had been there from the
beginning: no word is taken from a log before it is known that all fit.

Of more than two ranks the last to submit leaves the result of a reduction in its lane for those who
come later: a copy takes less than all the sums, and ranks that wait for a processor come later. Who
finds none does not wait for it. A word for each rank says to which of its submissions its result
belongs.

A lane has several places. Who says SHORT is done with everything that it had submitted before. So
when an operation finds SHORTs of all, nobody reads any more what lies in the place of the one
before it, and no word need be said about that. Where some rank has gone another way, all say when
they are done (DONE), and the place is not used until then. Which of the two it is all ranks see in
the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lockstitch.collectives.shared_memory import log
from lockstitch.collectives.shared_memory.operations import NOWHERE, Lane
from lockstitch.collectives.shared_memory.segment import LANE_PLACES, SHORT_BYTES
from lockstitch.collectives.shared_memory.whole import combined, output_of, reduced
from lockstitch.fences import STORES_ARE_ORDERED, Fence

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lockstitch.collectives.arithmetic import Parts
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.requests import Request
    from lockstitch.collectives.shared_memory.definitions import Definition, Definitions
    from lockstitch.collectives.shared_memory.log import LogReader
    from lockstitch.collectives.shared_memory.segment import Segment

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


class _Views:
    """The tensors in one rank's lane, which begins at that byte of the segment."""

    __slots__ = ("_begin", "_known", "_rank", "_segment")

    def __init__(self, segment: Segment, rank: int, begin: int) -> None:
        self._segment = segment
        self._rank = rank
        self._begin = begin
        self._known: dict[tuple[Definition, int], torch.Tensor] = {}

    def place(self, number: int) -> int:
        """Where a place of the lane is."""
        return self._begin + number * SHORT_BYTES

    def of(self, definition: Definition, number: int) -> torch.Tensor:
        """What lies in a place of the lane."""
        view = self._known.get((definition, number))
        if view is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            view = definition.view(self._segment, self.place(number))
            self._known[definition, number] = view
        return view

    def given(self, definition: Definition, number: int) -> torch.Tensor | None:
        """The same, where the rank gives anything."""
        return self.of(definition, number) if definition.is_given_by(self._rank) else None


class _Other:
    """Another rank, as the shortcut sees it."""

    __slots__ = ("index", "known", "rank", "reader", "views")

    def __init__(self, rank: int, index: int, reader: LogReader, views: _Views) -> None:
        self.rank = rank
        self.index = index
        self.reader = reader
        self.views = views
        self.known: dict[int, tuple[Definition, torch.Tensor | None]] = {}
        """What its words stand for, and the tensors that they tell of."""


class Shortcut:
    """See the module; of one rank in one process set. Callers hold the lock of `OpenSets`."""

    def __init__(
        self,
        process_set: ProcessSet,
        rank: int,
        segment: Segment,
        tails: memoryview,
        readers: Sequence[tuple[int, int, LogReader]],
        definitions: Definitions,
    ) -> None:
        self.lane = Lane()
        self.handle: Handle[Any] | None = None
        """The operation that is under way here, of which the table knows nothing."""
        self.definition: Definition | None = None
        self.place = 0
        """In this rank's lane, where its tensor lies."""
        self._ranks = process_set.ranks
        self._size = process_set.size
        self._tails = tails
        self._definitions = definitions
        self._done = 0
        self._results = segment.results(process_set.id, process_set.size)
        self._number = 0
        self._out: torch.Tensor | None = None
        """The result, once others may read it."""
        self._fence = Fence()
        self._position = process_set.position(rank)
        self._views = [
            _Views(segment, each, segment.lane(process_set.id, index))
            for index, each in enumerate(process_set.ranks)
        ]
        self._own_views = self._views[self._position]
        self._others = [_Other(*each, self._views[each[1]]) for each in readers]
        self._missing = self._others
        self._parts: list[torch.Tensor | None] = [None] * self._size
        self.is_ready = False
        """Whether it has been told that all ranks are ready."""

    def place_of(self, rank: int, definition: Definition, place: int) -> int:
        """Where the tensor is that a rank has put into that place of its lane, in bytes from the
        segment's beginning; `NOWHERE` where it has put nothing there."""
        if not definition.is_given_by(rank):
            return NOWHERE
        return self._views[self._ranks.index(rank)].place(place)

    def prepare(self, handle: Handle[Any], definition: Definition) -> int:
        """Copies the tensor into the lane; returns the word that tells of it."""
        place = self.lane.free[-1]
        view: torch.Tensor | None
        if definition.has_single:  # the usual case
            view = self._own_views.of(definition, place)
        else:
            view = self._own_views.given(definition, place)
        if view is not None:
            view.copy_(handle.request.tensors[0])
        self._parts[self._position] = view
        return log.SHORT_SUBMIT | handle.cached.number << 4 | place << 20

    def begin(self, handle: Handle[Any], definition: Definition, number: int) -> None:
        """The others have been told; the word was the one of that number in this rank's log."""
        self._number = number
        self._out = None
        self.definition = definition
        self.place = self.lane.free.pop()
        self._missing = self._others
        self.is_ready = False
        self.handle = handle

    @property
    def has_seen_some(self) -> bool:
        """Whether other ranks are ready, of which more words may have come since."""
        return len(self._missing) < len(self._others)

    def look(self) -> int:
        """Whether all ranks are ready, as far as the logs were written."""
        definition, parts, tails = self.definition, self._parts, self._tails
        assert definition is not None
        missing: list[_Other] = []
        for other in self._missing:
            reader, index = other.reader, other.index
            position = reader.position
            if tails[index] == position:
                missing.append(other)
                continue
            each = reader.ring[position % reader.size]
            known = other.known.get(each) or self._learn(other, each)
            if known is None or known[0] is not definition:
                if known is not None:
                    definition.note_other(known[0])
                return OTHERWISE
            parts[index] = known[1]
        if not missing:
            return READY
        is_news = len(missing) < len(self._missing)
        self._missing = missing
        return NEWS if is_news else NOTHING

    def _learn(self, other: _Other, each: int) -> tuple[Definition, torch.Tensor | None] | None:
        if not log.is_short(each):
            return None
        if len(other.known) >= _MOST_KNOWN:
            other.known.clear()
        definition = self._definitions.of(other.rank, each >> 4 & 0xFFFF)
        place = each >> 20 & log.PLACE_MASK
        other.known[each] = known = definition, other.views.given(definition, place)
        return known

    def forget(self, rank: int) -> None:
        """That rank gives a number another meaning."""
        for other in self._others:
            if other.rank == rank:
                other.known.clear()

    def result(self) -> object:
        """The value of the operation, when all are ready; may be repeated."""
        handle, definition = self.handle, self.definition
        assert handle is not None
        assert definition is not None
        if not definition.has_single:
            tensors: Parts = [[] if part is None else [part] for part in self._parts]
            described = [definition.description] * self._size
            return combined(handle, described, tensors, self._position)
        request, out = handle.request, self._out
        is_last = self._missing is self._others  # they were ready at the first look
        if out is None and self._size > 2 and not is_last:
            out = self._found(request, definition)
        if out is None:
            out = reduced(definition, request, self._parts, self._size)  # type: ignore[arg-type]
            if self._size > 2 and is_last:
                self._leave(definition, out)
        return [out] if request.is_group else out

    def _found(self, request: Request, definition: Definition) -> torch.Tensor | None:
        """The result that another rank has left, if one has."""
        results = self._results
        for other in self._others:
            if results[other.index] == other.reader.position + 1:
                return output_of(request).copy_(other.views.of(definition, LANE_PLACES))
        return None

    def _leave(self, definition: Definition, out: torch.Tensor) -> None:
        self._own_views.of(definition, LANE_PLACES).copy_(out)
        self._out = out  # before others read what a repetition would write
        if not STORES_ARE_ORDERED:
            self._fence()
        self._results[self._position] = self._number

    def end(self) -> Handle[Any]:
        """The operation is done; returns its handle."""
        handle, self.handle = self.handle, None
        assert handle is not None
        for other in self._others:
            other.reader.position += 1
        self._done += 1
        if not self._done % _TOLD_ONE_IN:
            for other in self._others:
                other.reader.tell()
        self.lane.settle(self.place)
        return handle
