"""How one operation moves its tensors through the segment. Three ways, chosen by all ranks alike
from what all of them have logged:

- *Whole*: each rank has copied its tensors into its arena before it submitted. When all have, each
  computes its result from all copies. One phase, and no waiting beyond that. For everything but
  large allreduces.
- *In place*: the tensors live in the arenas. Each rank reduces a slice of all of them and writes it
  into each. Two phases: every rank keeps a copy of its own, for it may change it afterwards.
- *In chunks*: large private tensors pass through a ring of chunks that stays in the cache. Of two
  ranks each adds the other's chunk to its own. More would have to read too much: there each reduces
  a slice of the chunk, in its own ring, and then collects the slices of all. A rank may be `DEPTH`
  chunks ahead of its own reading; the ring has twice as many, so that a chunk is overwritten only
  when all have read it: whoever has written chunk p has read all up to p - DEPTH.

Where only some tensors live in the arenas, the others are copied there, and it goes on in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from lockstitch.collectives.arithmetic import (
    combine,
    fold,
    outputs_of,
    result_factor,
    rows_gathered,
    scale_,
    scaled_copy,
)
from lockstitch.collectives.outcomes import value_of
from lockstitch.collectives.requests import Kind
from lockstitch.collectives.shared_memory.arena import ArenaFullError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.requests import Request
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.segment import Segment

DEPTH = 2
RESIDENT_BYTES = 1 << 16
"""Smaller tensors are quicker copied than reduced in two phases."""
# In place, a slice is worked on in blocks that stay in the cache between reading and writing.
_BLOCK_BYTES = 1 << 18

NOWHERE = 0


class Room(Protocol):
    """What operations need of their surroundings."""

    rank: int
    segment: Segment
    chunk_bytes: int

    def take(self, operation: Operation, size: int) -> int:
        """Room in this rank's arena, until all are done with the operation; see `Arena.take`."""
        ...

    def tell_progress(self, operation: Operation, count: int) -> None:
        """So many chunks, or the slice, are there."""
        ...

    def tell_reduced(self, operation: Operation, count: int) -> None:
        """The slice of so many chunks is reduced."""
        ...

    def tell_place(self, operation: Operation, place: int) -> None:
        """The whole tensor lies there."""
        ...


class Part:
    """What one rank has logged of an operation."""

    __slots__ = (
        "definition",
        "is_done",
        "is_resident",
        "operation",
        "place",
        "produced",
        "rank",
        "reduced",
        "whole_place",
    )

    def __init__(self, rank: int, definition: Definition, place: int, is_resident: bool) -> None:
        self.rank = rank
        self.definition = definition
        self.place = place
        """In bytes from the segment's beginning: of the tensors, or of the ring of chunks."""
        self.whole_place = NOWHERE if definition.is_large and not is_resident else place
        """Where a tensor lies as a whole, once it does."""
        self.is_resident = is_resident
        self.produced = 0
        self.reduced = 0
        self.is_done = False
        self.operation: Operation | None = None


class Operation:
    """One operation as this rank performs it. `prepare` before it is submitted, `begin` when all
    parts are known, `step` until it says that it is done."""

    def __init__(self, handle: Handle[Any], definition: Definition) -> None:
        self.handle = handle
        self.request: Request = handle.request
        self.definition = definition
        self.parts: list[Part | None] = []
        self.present: list[Part] = []
        self.held: list[int] = []
        """Places in this rank's arena, to be given back when all others are done."""
        self.unread = 0
        """How many ranks are not done with them."""

    def begin(self, parts: list[Part | None], present: list[Part], position: int) -> None:
        """All ranks are ready; parts by position, None for who has joined."""
        self.parts = parts
        self.present = present
        self.position = position

    def owes(self, part: Part) -> bool:
        """Whether this rank still waits for something of that part."""
        raise NotImplementedError

    def end(self) -> None:
        """Nobody needs it any more. Operation and parts know each other, which would make work for
        the garbage collector with every operation."""
        for part in self.present:
            part.operation = None
        self.parts = []
        self.present = []
        self.held = []

    def step(self, room: Room) -> bool:
        """Goes on as far as it can without waiting; True when this rank's part is over."""
        raise NotImplementedError

    def finish(self, results: list[torch.Tensor]) -> object:
        """The value for whoever waits."""
        if self.request.kind is Kind.ALLGATHER:
            described = [part.definition.description if part else None for part in self.parts]
            self.handle.rows = rows_gathered(described)
        return value_of(self.request, results)

    def result(self) -> object:
        """The value, when `step` is over."""
        raise NotImplementedError


class Whole(Operation):
    """See the module."""

    _value: object

    def prepare(self, room: Room, rank: int) -> int:
        """Copies the tensors; returns where they are."""
        request = self.request
        if not request.tensors or (request.kind is Kind.BROADCAST and request.root != rank):
            return NOWHERE
        definition = self.definition
        place = room.take(self, definition.layout.size)
        views = definition.views(room.segment, place)
        if request.reduction is None or request.reduction.prescale == 1.0:
            if len(views) == 1:
                views[0].copy_(request.tensors[0])
            else:
                torch._foreach_copy_(views, request.tensors)
        else:
            stage(request, views)
        return place

    def step(self, room: Room) -> bool:
        if self.definition.has_single:
            self._reduce_one(room)
        elif self.definition.is_uniform:
            self._reduce_together(room)
        else:
            self._combine(room)
        return True

    def _reduce_one(self, room: Room) -> None:
        """The usual case, with less ado."""
        request, reduction = self.request, self.request.reduction
        assert reduction is not None
        out = request.outputs[0] if request.outputs is not None else outputs_of(request)[0]
        views, segment = self.definition.views, room.segment
        tensors = [views(segment, part.place)[0] for part in self.present]
        if len(tensors) == 2 and self._can_read_own():
            # Not the copy: what is in the cache is the tensor itself.
            tensors[self.position] = request.tensors[0]
        if len(tensors) == 2 and out.is_cpu:
            self.definition.fold(tensors[0], tensors[1], out=out)
        elif out.is_cpu:
            fold(self.definition.fold, tensors, out)
        else:
            out.copy_(fold(self.definition.fold, tensors, torch.empty_like(tensors[0])))
        factor = result_factor(reduction, len(self.parts))
        if factor != 1.0:
            scale_(out, factor)
        self._value = [out] if request.is_group else out

    def _reduce_together(self, room: Room) -> None:
        """Several tensors of one dtype, as the one vector in which they lie, gaps included."""
        request, definition = self.request, self.definition
        assert request.reduction is not None
        dtype = definition.dtypes[0]
        count = definition.layout.size // dtype.itemsize
        vectors = [room.segment.vector(part.place, dtype, count) for part in self.present]
        flat = fold(definition.fold, vectors, torch.empty(count, dtype=dtype))
        scale_(flat, result_factor(request.reduction, len(self.parts)))
        begins = [offset // dtype.itemsize for offset in definition.layout.offsets]
        results = [
            flat[begin : begin + tensor.numel()].view(tensor.shape)
            for begin, tensor in zip(begins, request.tensors, strict=True)
        ]
        if request.outputs is not None:
            torch._foreach_copy_(request.outputs, results)
            results = list(request.outputs)
        elif not all(tensor.is_cpu for tensor in request.tensors):
            results = [
                result.to(tensor.device)
                for result, tensor in zip(results, request.tensors, strict=True)
            ]
        self._value = results

    def _can_read_own(self) -> bool:
        (tensor,) = self.request.tensors
        return (
            self.definition.layout.size > RESIDENT_BYTES
            and len(self.parts) == 2
            and tensor.is_cpu
            and self.request.reduction is not None
            and self.request.reduction.prescale == 1.0
        )

    def _combine(self, room: Room) -> None:
        segment = room.segment
        tensors = [
            None
            if part is None
            else []
            if part.place == NOWHERE
            else part.definition.views(segment, part.place)
            for part in self.parts
        ]
        described = [part.definition.description if part else None for part in self.parts]
        self._value = self.finish(combine(self.request, described, tensors, self.position))

    def owes(self, _part: Part) -> bool:
        return False

    def result(self) -> object:
        return self._value


class InChunks(Operation):
    """See the module."""

    def prepare(self, room: Room) -> int:
        """Fills the first chunks; returns where the ring is."""
        assert self.request.reduction is not None
        self._chunk_bytes = room.chunk_bytes
        self._chunks = self.definition.chunks(room.chunk_bytes)
        flat = [tensor.contiguous().view(-1) for tensor in self.request.tensors]
        self._sources = self._cut(flat)
        self._factor = self.request.reduction.prescale
        self.ring = room.take(self, 2 * DEPTH * self._chunk_bytes)
        self.produced = self.told = self.consumed = 0
        self._produce(room)
        return self.ring

    def begin(self, parts: list[Part | None], present: list[Part], position: int) -> None:
        super().begin(parts, present, position)
        assert self.request.reduction is not None
        self._fold = self.definition.fold
        self._result_factor = result_factor(self.request.reduction, len(parts))
        self._results = outputs_of(self.request)
        # What is not in order in host memory is put together elsewhere first.
        self._gathered = [
            out.view(-1)
            if out.is_contiguous() and out.is_cpu
            else torch.empty(out.numel(), dtype=out.dtype)
            for out in self._results
        ]
        self._sinks = self._cut(self._gathered)
        self._has_slices = len(present) > 2
        self._index = present.index(parts[position])  # type: ignore[arg-type]  # it is present
        self.reduced = 0
        # Of two, this rank's own part is read from the tensor itself where it is still there.
        is_own_intact = self._factor == 1.0 and len(present) == 2
        self._peer = (
            next(part for part in present if part is not parts[position]) if is_own_intact else None
        )

    def step(self, room: Room) -> bool:
        count = len(self._chunks)
        while self.consumed < count:
            self._produce(room)
            if self.told < self.produced:
                self.told = self.produced
                room.tell_progress(self, self.produced)
            ready = min(part.produced for part in self.present)
            if self._has_slices:
                self._reduce_slices(room, ready)
                ready = min(part.reduced for part in self.present)
            if ready <= self.consumed:
                return False
            if self._has_slices:
                self._collect_slices(room)
            else:
                self._consume(room)
            self.consumed += 1
        for gathered, out in zip(self._gathered, self._results, strict=True):
            if gathered.data_ptr() != out.data_ptr():
                out.copy_(gathered.view(out.shape))
        return True

    def owes(self, part: Part) -> bool:
        given = part.reduced if self._has_slices else part.produced
        return given < len(self._chunks)

    def result(self) -> object:
        return self.finish(self._results)

    def _cut(self, flat: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        return [
            [flat[piece.tensor][piece.begin : piece.end] for piece in chunk]
            for chunk in self._chunks
        ]

    def _produce(self, room: Room) -> None:
        while self.produced < len(self._chunks) and self.produced - self.consumed < DEPTH:
            views = self._views(room, self.ring, self.produced)
            for source, view in zip(self._sources[self.produced], views, strict=True):
                if self._factor == 1.0:
                    view.copy_(source)
                else:
                    scaled_copy(source, self._factor, view)
            self.produced += 1

    def _consume(self, room: Room) -> None:
        index = self.consumed
        sinks = self._sinks[index]
        if self._peer is not None:
            peers = self._views(room, self._peer.place, index)
            for own, peer, out in zip(self._sources[index], peers, sinks, strict=True):
                self._fold(own, peer, out=out)
        else:
            rings = [self._views(room, part.place, index) for part in self.present]
            for out, *tensors in zip(sinks, *rings, strict=True):
                fold(self._fold, tensors, out)
        if self._result_factor != 1.0:
            for out in sinks:
                scale_(out, self._result_factor)

    def _reduce_slices(self, room: Room, ready: int) -> None:
        """This rank's slice of every chunk that is there; nobody else reads that slice of its ring
        before it is told."""
        before = self.reduced
        while self.reduced < ready:
            rings = [
                self._slices(room, part.place, self.reduced, self._index) for part in self.present
            ]
            own = rings[self._index]
            for out, *tensors in zip(own, *rings, strict=True):
                if self._index:
                    # In the order of ranks, and into memory that is one of those to be read.
                    out.copy_(fold(self._fold, tensors, torch.empty_like(out)))
                else:
                    fold(self._fold, tensors, out)
                scale_(out, self._result_factor)
            self.reduced += 1
        if self.reduced > before:
            room.tell_reduced(self, self.reduced)

    def _collect_slices(self, room: Room) -> None:
        chunk = self._chunks[self.consumed]
        count = len(self.present)
        for index, part in enumerate(self.present):
            slices = self._slices(room, part.place, self.consumed, index)
            for piece, sink, each in zip(chunk, self._sinks[self.consumed], slices, strict=True):
                begin, end = _share(piece.end - piece.begin, count, index)
                sink[begin:end].copy_(each)

    def _slices(self, room: Room, ring: int, chunk: int, index: int) -> list[torch.Tensor]:
        """One slice of each piece of a chunk."""
        at = ring + chunk % (2 * DEPTH) * self._chunk_bytes
        found = []
        for piece in self._chunks[chunk]:
            dtype = self.definition.dtypes[piece.tensor]
            begin, end = _share(piece.end - piece.begin, len(self.present), index)
            place = at + piece.offset + begin * dtype.itemsize
            found.append(room.segment.vector(place, dtype, end - begin))
        return found

    def _views(self, room: Room, ring: int, chunk: int) -> list[torch.Tensor]:
        begin = ring + chunk % (2 * DEPTH) * self._chunk_bytes
        dtypes, vector = self.definition.dtypes, room.segment.vector
        return [
            vector(begin + piece.offset, dtypes[piece.tensor], piece.end - piece.begin)
            for piece in self._chunks[chunk]
        ]


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


def _share(count: int, shares: int, index: int) -> tuple[int, int]:
    """The index-th of equal shares of so many elements."""
    return count * index // shares, count * (index + 1) // shares


def _slice(count: int, slices: int, index: int, item_size: int) -> tuple[int, int]:
    """The index-th of equal slices, cut at cache lines."""
    line = max(64 // item_size, 1)
    share = (count // slices + line - 1) // line * line
    begin = min(count, share * index)
    return begin, count if index == slices - 1 else min(count, share * (index + 1))


def stage(request: Request, views: Sequence[torch.Tensor]) -> None:
    """Copies a request's tensors, prescaled."""
    factor = request.reduction.prescale if request.reduction else 1.0
    for tensor, view in zip(request.tensors, views, strict=True):
        scaled_copy(tensor, factor, view)
