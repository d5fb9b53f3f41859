"""Reductions and broadcasts of one small tensor under a name that has taken the shortcut before, in
few steps.

`Shortcut` finds out what each word stands for and where each tensor lies. Where ranks do the same
again and again that is known beforehand: each rank says the same word as the last time, but for the
place. Whatever is not so is left to `Shortcut`, whose operation it is from the moment at which the
others are told.

Ranks that share processors find little of what they need in the caches when their turn comes. So
what counts is not only how many steps there are, but also how few different ones. Therefore what is
only copied is moved as bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch.autograd.graph import increment_version

from lockstitch.collectives.shared_memory import log
from lockstitch.collectives.shared_memory.lanes import LANE_MASK
from lockstitch.collectives.shared_memory.segment import RESULTS_BEGIN
from lockstitch.collectives.shared_memory.whole import reduced
from lockstitch.copying import MEMORY
from lockstitch.fences import STORES_ARE_ORDERED

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.request_cache import CachedRequest
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.shortcut import Shortcut

_PLACELESS: Final = ~(LANE_MASK << 20)


def quicken(shortcut: Shortcut) -> None:
    """Notes what is known of the first operation, for which all are ready, for others under its
    name, unless ranks would say other words then."""
    handle, definition = shortcut.handle, shortcut.definition
    assert handle is not None
    assert definition is not None
    known: Quick | None = handle.cached.quick
    if known is not None and known.version == shortcut.version:
        return
    words = {
        other.index: other.ring[other.reader.position % other.size] for other in shortcut.others
    }
    if not definition.dtypes[0].is_complex and not any(map(log.is_queued, words.values())):
        kind = Quick if definition.has_single else QuickBroadcast
        handle.cached.quick = kind(shortcut, definition, words, handle.cached)


class Quick:
    """For one name of this rank; made by `quicken`. Callers hold the lock of `OpenSets`,
    and hand the shortcut over, which refers to this."""

    def __init__(
        self,
        shortcut: Shortcut,
        definition: Definition,
        words: Mapping[int, int],
        cached: CachedRequest,
    ) -> None:
        """`words`: those of the other ranks, by their positions."""
        self._lanes = lanes = shortcut.lanes
        self._definition = definition
        self._bytes = cached.tensor_bytes
        self._stride = definition.lane_stride
        self._begin = lanes.own.address(definition)
        self._gives = definition.is_given_by(lanes.rank)
        """Whether this rank gives the others its tensor."""
        self._word = log.SHORT_SUBMIT | cached.number << 4
        self._others = [
            (
                each.index,
                each.reader,
                each.lane,
                each.lane.known(definition)[1] if definition.is_given_by(each.rank) else None,
                words[each.index] & _PLACELESS,
            )
            for each in shortcut.others
        ]
        self._parts: list[torch.Tensor | None] = [None] * (len(self._others) + 1)
        self._me = lanes.position
        self._is_left = len(lanes.of_rank) > 2
        """Whether the last rank leaves its result for the others."""
        self.version = shortcut.version
        """Another one, and this is not used any more."""

    def submit(self, shortcut: Shortcut, handle: Handle[Any]) -> bool:
        """Submits an operation in place, of a rank that has nothing under way; whether that could
        be done here."""
        lanes, definition, tensor = self._lanes, self._definition, handle.request.tensors[0]
        if (
            shortcut.version != self.version
            or not definition.is_short
            or not tensor.is_contiguous()
            or tensor.is_neg()
        ):
            return False
        place = lanes.free_place(definition)
        if place < 0:
            return False
        if self._gives:
            to, begin, size = self._begin + place * self._stride, tensor.data_ptr(), self._bytes
            MEMORY[to : to + size] = MEMORY[begin : begin + size]
        if not shortcut.tell(self._word | place << 20):
            return False
        shortcut.quick = self
        shortcut.start(handle, definition, lanes.use(definition, place), place)
        shortcut.is_changing = False
        return True

    def end(self, shortcut: Shortcut) -> torch.Tensor | None:
        """The result of the first operation, which was submitted here, if all other ranks are ready
        and it can be had; they have been told then, and the books are in disorder until the end is
        noted. None: nothing has happened."""
        others, parts, tails = self._others, self._parts, shortcut.tails
        handle = shortcut.handle
        assert handle is not None
        if not handle.request.is_awaited and not self._fits(handle.request.tensors[0]):
            return None
        for index, reader, lane, views, word in others:
            position = reader.position
            if tails[index] == position:
                shortcut.is_fresh = False
                return None
            if not STORES_ARE_ORDERED:
                shortcut.fence()
            each = reader.ring[position % reader.size]
            if each & _PLACELESS != word:
                shortcut.is_fresh = False
                return None
            if views is not None:
                place = each >> 20 & LANE_MASK
                part = views[place]
                parts[index] = lane.view(self._definition, place) if part is None else part
        try:
            out = self._result(shortcut)
        except Exception:  # noqa: BLE001 - raised once more where it is told
            return None
        shortcut.is_changing = True
        shortcut.finish()
        return out

    def _fits(self, out: torch.Tensor) -> bool:
        """Whether the result can be moved there as bytes: a program that goes on meanwhile may have
        given the tensor another size or other memory, which is an error, but none that may reach
        beyond it."""
        return out.nbytes == self._bytes and out.is_contiguous()

    def _moved(self, begin: int, out: torch.Tensor) -> torch.Tensor:
        """Moves the result there, from that address."""
        to, size = out.data_ptr(), self._bytes
        MEMORY[to : to + size] = MEMORY[begin : begin + size]
        increment_version(out)
        return out

    def _result(self, shortcut: Shortcut) -> torch.Tensor:
        handle, definition = shortcut.handle, self._definition
        assert handle is not None
        request = handle.request
        if self._is_left:
            if shortcut.out is not None:
                return shortcut.out
            if not shortcut.is_fresh:
                results = shortcut.results
                for index, reader, lane, _, _ in self._others:
                    if results[index] == lane.taken + 1:
                        if not STORES_ARE_ORDERED:
                            shortcut.fence()
                        place = reader.ring[reader.position % reader.size] >> 20 & LANE_MASK
                        begin = lane.address(definition) + RESULTS_BEGIN + place * self._stride
                        return self._moved(begin, request.tensors[0])
        parts: Any = self._parts
        parts[self._me] = self._lanes.own.view(definition, shortcut.place)
        out = reduced(definition, request, parts, len(parts))
        if self._is_left and shortcut.is_fresh:
            shortcut.leave_result(definition, out)
        return out


class QuickBroadcast(Quick):
    """The same for a broadcast."""

    def _result(self, shortcut: Shortcut) -> torch.Tensor:
        handle = shortcut.handle
        assert handle is not None
        out: torch.Tensor = handle.request.tensors[0]
        if not self._gives:
            (given,) = [each for each in self._parts if each is not None]
            return self._moved(given.data_ptr(), out)
        return out
