"""Large private tensors, reduced as they pass through a ring of chunks that stays in the cache (see
`rounds`).

Of two ranks each adds the other's chunk to its own. More would have to read too much: there each
reduces a slice of the chunk, in its own ring, and then collects the slices of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives.arithmetic import (
    UNSCALED,
    fold,
    outputs_of,
    result_scale,
    scaled_copy,
)
from lockstitch.collectives.copying import copy
from lockstitch.collectives.outcomes import value_of
from lockstitch.collectives.shared_memory.definitions import block_bytes_for
from lockstitch.collectives.shared_memory.operations import fill_from_vectors, vectors_for
from lockstitch.collectives.shared_memory.rounds import SLOTS, InRounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.fusion import Piece
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.operations import OperationContext, Part


class InChunks(InRounds):
    """An allreduce of large private tensors."""

    def __init__(self, handle: Handle[Any], definition: Definition) -> None:
        super().__init__(handle, definition)
        assert self.request.reduction is not None
        self._factor = self.request.reduction.prescale
        self._fold = definition.fold
        self._result_scale = UNSCALED
        # From when it is prepared:
        self._chunk_bytes = 0
        self._chunks: list[tuple[Piece, ...]] = []
        self._sources: list[list[torch.Tensor]] = []
        # From when all parts are known:
        self._results: list[torch.Tensor] = []
        self._gathered: list[torch.Tensor] = []
        """What the results are put together in, where these are not in order themselves."""
        self._sinks: list[list[torch.Tensor]] = []
        self._has_slices = False
        self._index = 0
        """The index of this rank among those present."""
        self._peer: Part | None = None
        """The other one of two, while this rank's own part can be read from the tensor itself."""
        self._block_bytes = 0
        self._scratch: torch.Tensor | None = None
        self.reduced = 0
        """Of how many chunks this rank's slice is reduced."""
        self._is_reducing = False
        """Whether reducing the next one was begun: if so, an interrupt came in between."""

    def prepare(self, context: OperationContext) -> int:
        """Fills the first chunks; returns where the ring is."""
        self._chunk_bytes = context.chunk_bytes
        self._chunks = self.definition.chunks(context.chunk_bytes)
        self.rounds = self._given = len(self._chunks)
        flat = [tensor.contiguous().view(-1) for tensor in self.request.tensors]
        self._sources = self._cut(flat)
        slots = min(SLOTS, self.rounds)
        self.ring = context.take(
            self, slots * self._chunk_bytes if slots > 1 else self.definition.layout.size
        )
        self._produce(context)
        return self.ring

    def begin(
        self,
        context: OperationContext,
        parts: Sequence[Part | None],
        present: Sequence[Part],
        position: int,
    ) -> None:
        super().begin(context, parts, present, position)
        assert self.request.reduction is not None
        self._result_scale = result_scale(self.request.reduction, len(parts))
        self._results = outputs_of(self.request)
        self._gathered = vectors_for(self._results)
        self._sinks = self._cut(self._gathered)
        self._has_slices = len(present) > 2
        own = parts[position]
        assert own is not None
        self._index = present.index(own)
        if self._has_slices:
            self._block_bytes = block_bytes_for(len(present))
            self._scratch = torch.empty(self._block_bytes, dtype=torch.uint8)
        is_own_intact = self._factor == 1.0 and len(present) == 2
        self._peer = present[1 - self._index] if is_own_intact else None

    def _is_readable(self, context: OperationContext) -> bool:
        if not self._has_slices:
            return super()._is_readable(context)
        self._reduce_slices(context, min(part.produced for part in self.present))
        return min(part.reduced for part in self.present) > self.consumed

    def _read(self, context: OperationContext, index: int) -> None:
        if self._has_slices:
            self._collect_slices(context, index)
        else:
            self._add_peer(context, index)

    def _end(self) -> bool:
        fill_from_vectors(self._results, self._gathered)
        return True

    def owes(self, part: Part) -> bool:
        given = part.reduced if self._has_slices else part.produced
        return given < len(self._chunks)

    def result(self) -> object:
        return value_of(self.request, self._results)

    def _cut(self, flat: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        return [
            [flat[piece.tensor][piece.begin : piece.end] for piece in chunk]
            for chunk in self._chunks
        ]

    def _write(self, context: OperationContext, index: int) -> None:
        views = self._views(context, self.ring, index)
        for source, view in zip(self._sources[index], views, strict=True):
            scaled_copy(source, self._factor, view)

    def _add_peer(self, context: OperationContext, index: int) -> None:
        sinks = self._sinks[index]
        if self._is_consuming:  # the tensor may be where the sum goes; its copy is as it was
            self._peer = None
        self._is_consuming = True
        if self._peer is not None:
            peers = self._views(context, self._peer.place, index)
            for own, peer, out in zip(self._sources[index], peers, sinks, strict=True):
                self._fold(own, peer, out=out)
        else:
            rings = [self._views(context, part.place, index) for part in self.present]
            for out, *tensors in zip(sinks, *rings, strict=True):
                fold(self._fold, tensors, out)
        for out in sinks:
            self._result_scale.apply_(out)

    def _reduce_slices(self, context: OperationContext, ready: int) -> None:
        """Reduces this rank's slice of every chunk that is there; nobody else reads that slice of
        its ring before it is told."""
        while self.reduced < ready:
            if self._is_reducing:
                self._restore_slices(context)
            self._is_reducing = True
            rings = [
                self._slices(context, part.place, self.reduced, self._index)
                for part in self.present
            ]
            for tensors in zip(*rings, strict=True):
                self._reduce_slice(tensors)
            # Without a call in between, so that no interrupt can separate them.
            self._is_reducing = False
            self.reduced += 1
        if self._own.reduced < self.reduced:
            context.tell_reduced(self, self.reduced)

    def _restore_slices(self, context: OperationContext) -> None:
        """Makes the slices of the next chunk what they were before sums were written there."""
        chunk, sources = self._chunks[self.reduced], self._sources[self.reduced]
        slices = self._slices(context, self.ring, self.reduced, self._index)
        for piece, source, out in zip(chunk, sources, slices, strict=True):
            begin, end = _share(piece.end - piece.begin, len(self.present), self._index)
            scaled_copy(source[begin:end], self._factor, out)

    def _reduce_slice(self, tensors: Sequence[torch.Tensor]) -> None:
        """Reduces all ranks' parts of one slice into this rank's, block by block."""
        out, combine_two = tensors[self._index], self._fold
        length = self._block_bytes // out.dtype.itemsize
        assert self._scratch is not None
        space = self._scratch.view(out.dtype)
        for begin in range(0, len(out), length):
            sink = out[begin : begin + length]
            first, second, *others = [each[begin : begin + length] for each in tensors]
            # The sink is one of those to be read, so it is written last.
            for other in others:
                first = combine_two(first, second, out=space[: len(sink)])
                second = other
            combine_two(first, second, out=sink)
            self._result_scale.apply_(sink)

    def _collect_slices(self, context: OperationContext, index: int) -> None:
        chunk, count = self._chunks[index], len(self.present)
        for owner, part in enumerate(self.present):
            slices = self._slices(context, part.place, index, owner)
            for piece, sink, each in zip(chunk, self._sinks[index], slices, strict=True):
                begin, end = _share(piece.end - piece.begin, count, owner)
                copy(sink[begin:end], each)

    def _slices(
        self, context: OperationContext, ring: int, chunk: int, index: int
    ) -> list[torch.Tensor]:
        """One slice of each piece of a chunk."""
        at = ring + chunk % SLOTS * self._chunk_bytes
        found = []
        for piece in self._chunks[chunk]:
            dtype = self.definition.dtypes[piece.tensor]
            begin, end = _share(piece.end - piece.begin, len(self.present), index)
            place = at + piece.offset + begin * dtype.itemsize
            found.append(context.segment.vector(place, dtype, end - begin))
        return found

    def _views(self, context: OperationContext, ring: int, chunk: int) -> list[torch.Tensor]:
        begin = ring + chunk % SLOTS * self._chunk_bytes
        dtypes, vector = self.definition.dtypes, context.segment.vector
        return [
            vector(begin + piece.offset, dtypes[piece.tensor], piece.end - piece.begin)
            for piece in self._chunks[chunk]
        ]


def _share(count: int, shares: int, index: int) -> tuple[int, int]:
    """The index-th of equal shares of so many elements."""
    return count * index // shares, count * (index + 1) // shares
