"""Large tensors that live in the arenas, reduced where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.collectives.arithmetic import outputs_of, result_factor, scale_
from lockstitch.collectives.shared_memory.arena import ArenaFullError
from lockstitch.collectives.shared_memory.definitions import ONE_PHASE_BYTES
from lockstitch.collectives.shared_memory.operations import NOWHERE, Operation, stage

if TYPE_CHECKING:
    from lockstitch.collectives.shared_memory.operations import Part, Room

RESIDENT_BYTES: Final = ONE_PHASE_BYTES + 1
"""Smaller tensors are quicker copied than reduced in two phases."""
# A slice is worked on in blocks that stay in the cache between reading and writing.
_BLOCK_BYTES: Final = 1 << 18


class InPlace(Operation):
    """See the module; for allreduces of which at least one rank's tensor lives in its arena."""

    def begin(self, parts: list[Part | None], present: list[Part], position: int) -> None:
        super().begin(parts, present, position)
        own = parts[position]
        assert own is not None
        self._own = own
        self._is_slice_reduced = False

    def step(self, room: Room) -> bool:
        if not self._is_placed(room):
            return False
        if not self._is_slice_reduced:
            self._reduce_slice(room)
            self._is_slice_reduced = True
            room.tell_progress(self, 1)
        if not all(part.produced for part in self.present):
            return False
        self._results = outputs_of(self.request)
        if not self._own.is_resident:
            views = self.definition.views(room.segment, self._own.whole_place)
            for out, view in zip(self._results, views, strict=True):
                out.copy_(view)
        return True

    def _is_placed(self, room: Room) -> bool:
        """Whether all tensors are in the arenas; sees to this rank's own."""
        if self._own.whole_place == NOWHERE:
            try:
                place = room.take(self, self.definition.layout.size)
            except ArenaFullError:  # until others are done with something
                return False
            stage(self.request, self.definition.views(room.segment, place))
            room.tell_place(self, place)
        return all(part.whole_place != NOWHERE for part in self.present)

    def owes(self, part: Part) -> bool:
        return not part.produced

    def result(self) -> object:
        return self.finish(self._results)

    def _reduce_slice(self, room: Room) -> None:
        assert self.request.reduction is not None
        combine_two = self.definition.fold
        factor = result_factor(self.request.reduction, len(self.parts))
        (dtype,), (count,) = self.definition.dtypes, (self.request.tensors[0].numel(),)
        tensors = [room.segment.tensor(part.whole_place, dtype, (count,)) for part in self.present]
        index = [part.rank for part in self.present].index(room.rank)
        begin, end = _slice(count, len(tensors), index, dtype.itemsize)
        block = _BLOCK_BYTES // dtype.itemsize
        for at in range(begin, end, block):
            blocks = [tensor[at : min(at + block, end)] for tensor in tensors]
            first = blocks[0]
            for other in blocks[1:]:
                combine_two(first, other, out=first)
            scale_(first, factor)
            for other in blocks[1:]:
                other.copy_(first)


def _slice(count: int, slices: int, index: int, item_size: int) -> tuple[int, int]:
    """The index-th of equal slices, cut at cache lines."""
    line = max(64 // item_size, 1)
    share = (count // slices + line - 1) // line * line
    begin = min(count, share * index)
    return begin, count if index == slices - 1 else min(count, share * (index + 1))
