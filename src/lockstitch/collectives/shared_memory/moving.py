"""Large private tensors that are gathered, broadcast, exchanged, or reduced into parts, as they
pass through rings of chunks (see `rounds`).

What a rank gives consists of *shares*: one that all others read (of a broadcast or an allgather),
or one for each position of the set. In each round a rank writes the next piece of each share into
its ring. A rank whose tensor is small, while that of another one is large, has put all of it into
its arena when it submitted (`whole`), where the others read the same pieces.

All is read while some is still to be written. So a tensor that shares memory with outputs, or with
other processes, is copied first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from lockstitch.collectives.arithmetic import (
    FOLDS,
    check_delivery,
    exchanging,
    fold,
    gathering,
    outputs_of,
    result_scale,
    row_ranges,
    scaled_copy,
    splits_of,
)
from lockstitch.collectives.copying import copy
from lockstitch.collectives.mappings import is_shared
from lockstitch.collectives.requests import Kind
from lockstitch.collectives.shared_memory.operations import (
    NOWHERE,
    fill_from_vectors,
    finished,
    vectors_for,
)
from lockstitch.collectives.shared_memory.rounds import SLOTS, InRounds
from lockstitch.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.operations import OperationContext, Part

_LINE: Final = 64
# Who only reads has to wait until the first piece is there; of shares each is a piece.
_PIECE_BYTES: Final = 1 << 21
_ALL_READ_THE_SAME: Final = (Kind.BROADCAST, Kind.ALLGATHER)


class Share(NamedTuple):
    """Elements `begin` to `end` of what a rank gives, of which `step` are in each round at byte
    `offset` of the chunk."""

    begin: int
    end: int
    offset: int
    step: int
    is_for_others: bool = True

    @property
    def rounds(self) -> int:
        """How many rounds it takes."""
        return -(-(self.end - self.begin) // self.step)

    def piece(self, index: int) -> tuple[int, int]:
        """Returns where the piece of that round begins and ends, from the share's beginning."""
        count = self.end - self.begin
        begin = min(index * self.step, count)
        return begin, min(begin + self.step, count)


class Source(NamedTuple):
    """What is read of one rank: a share in its ring at `place`, or, where it lies in one piece,
    these elements."""

    share: Share
    place: int
    whole: torch.Tensor | None


class Moving(InRounds):
    """An allgather, broadcast, alltoall or reduce-scatter of one tensor of each rank."""

    def __init__(self, handle: Handle[Any], definition: Definition) -> None:
        super().__init__(handle, definition)
        self._dtype = definition.dtypes[0]
        self._tensor: torch.Tensor | None = None
        """What this rank gives, as a vector that nobody changes; None where it gives nothing, or
        all of it lies in its arena."""
        self._written: list[Share] = []
        """What the others read of it."""
        # From when all parts are known:
        self._sources: list[Source] = []
        self._sinks: list[torch.Tensor] = []
        """Where what is read goes: a vector for each source, or only one for their sum."""
        self._results: list[torch.Tensor] = []
        self._value: object = None
        self._error: MismatchError | None = None
        """Why the result cannot be written; raised when the others have had what they read here."""

    def prepare(self, context: OperationContext) -> int:
        """Fills the first chunks; returns where the ring is."""
        request = self.request
        if request.kind is Kind.BROADCAST and request.root != context.rank:
            return NOWHERE
        self._tensor = self._undisturbed(context)
        shares = _shares(context, self.definition, context.rank)
        self._given = max(share.rounds for share in shares)
        self._written = [share for share in shares if share.is_for_others]
        self.ring = context.take(self, min(SLOTS, max(self._given, 1)) * context.chunk_bytes)
        self._produce(context)
        return self.ring

    def _undisturbed(self, context: OperationContext) -> torch.Tensor:
        """Returns the tensor as a vector, or a copy where it could change while it is read."""
        request = self.request
        (tensor,) = request.tensors
        vector = tensor.contiguous().view(-1)
        if request.reduction is not None and request.reduction.prescale != 1.0:
            scaled = torch.empty_like(vector)
            scaled_copy(vector, request.reduction.prescale, scaled)
            return scaled
        outputs = list(request.outputs or ())
        if request.kind in _ALL_READ_THE_SAME and outputs:
            # One of these may be the tensor itself: then each element goes where it is.
            index = context.ranks.index(context.rank) if request.kind is Kind.ALLGATHER else 0
            if outputs[index].data_ptr() == vector.data_ptr():
                del outputs[index]
        is_disturbed = is_shared(vector) or any(_overlap(out, vector) for out in outputs)
        return vector.clone() if is_disturbed else vector

    # ------------------------------------------------------------ when all are ready

    def begin(
        self,
        context: OperationContext,
        parts: Sequence[Part | None],
        present: Sequence[Part],
        position: int,
    ) -> None:
        super().begin(context, parts, present, position)
        givers = present
        if self.request.kind is Kind.BROADCAST:
            givers = [part for part in present if part.rank == self.request.root]
        for part in givers:
            shares = _shares(context, part.definition, part.rank)
            self.rounds = max(self.rounds, *(share.rounds for share in shares))
            share = shares[position if len(shares) > 1 else 0]
            self._sources.append(self._source(context, part, share))
        self._sinks = vectors_for(self._wanted())

    def _source(self, context: OperationContext, part: Part, share: Share) -> Source:
        whole = None
        if part.rank == context.rank and self._tensor is not None:
            whole = self._tensor[share.begin : share.end]
        elif not part.definition.is_large:
            (shape,) = part.definition.description.shapes
            everything = context.segment.vector(part.place, self._dtype, math.prod(shape))
            whole = everything[share.begin : share.end]
        return Source(share, part.place, whole)

    def _wanted(self) -> list[torch.Tensor]:
        """Where what is read goes: a tensor for each source, or only one for their sum. Prepares
        the results."""
        request = self.request
        described = [part.definition.description for part in self.present]
        if request.kind is Kind.REDUCESCATTER:
            shape = (-1, *request.tensors[0].shape[1:])
            share = self._sources[0].share
            self._results = list(request.outputs or ())
            if not self._results:
                self._results = [
                    torch.empty(share.end - share.begin, dtype=self._dtype).view(shape)
                ]
            return self._results
        if request.kind is Kind.BROADCAST:
            self._results = outputs_of(request)
            return self._results
        if request.kind is Kind.ALLGATHER:
            self._results, wanted = gathering(request, described)
        else:
            self._results, wanted = exchanging(request, described, self.position)
        try:
            check_delivery(wanted, (each.share.end - each.share.begin for each in self._sources))
        except MismatchError as error:
            self._error = error
        return wanted

    # ------------------------------------------------------------ in each round

    def _write(self, context: OperationContext, index: int) -> None:
        assert self._tensor is not None
        for share in self._written:
            begin, end = share.piece(index)
            if begin < end:
                ring = self._in_ring(context, self.ring, share, index)
                copy(ring, self._tensor[share.begin + begin : share.begin + end])

    def _read(self, context: OperationContext, index: int) -> None:
        if self._error is not None:
            return
        pieces = []
        for source in self._sources:
            if source.whole is None:
                pieces.append(self._in_ring(context, source.place, source.share, index))
            else:
                begin, end = source.share.piece(index)
                pieces.append(source.whole[begin:end])
        reduction = self.request.reduction
        if reduction is not None:
            begin, end = self._sources[0].share.piece(index)
            out = fold(FOLDS[reduction.op], pieces, self._sinks[0][begin:end])
            result_scale(reduction, len(self.parts)).apply_(out)
            return
        for source, piece, sink in zip(self._sources, pieces, self._sinks, strict=True):
            begin, end = source.share.piece(index)
            out = sink[begin:end]
            if out.data_ptr() != piece.data_ptr():
                copy(out, piece)

    def _in_ring(
        self, context: OperationContext, ring: int, share: Share, index: int
    ) -> torch.Tensor:
        """The piece of a share that is in the ring in that round."""
        begin, end = share.piece(index)
        place = ring + index % SLOTS * context.chunk_bytes + share.offset
        return context.segment.vector(place, self._dtype, end - begin)

    def _end(self) -> bool:
        if self._error is not None:
            self.fails_alone = True
            raise self._error
        if self.request.kind is Kind.BROADCAST:
            fill_from_vectors(self._results, self._sinks)
        described = [part.definition.description if part else None for part in self.parts]
        self._value = finished(self.handle, described, self._results)
        return True

    def result(self) -> object:
        return self._value


def _shares(context: OperationContext, definition: Definition, giver: int) -> list[Share]:
    """The shares of what a rank gives, by the position of who reads them; only one where all read
    the same."""
    description, item = definition.description, definition.item_sizes[0]
    (shape,) = description.shapes
    if description.kind in _ALL_READ_THE_SAME:
        length = min(context.chunk_bytes, _PIECE_BYTES)
        return [Share(0, math.prod(shape), 0, length // item)]
    size, position = len(context.ranks), context.ranks.index(giver)
    length = context.chunk_bytes // max(size - 1, 1) // _LINE * _LINE
    splits = description.splits
    if description.kind is Kind.ALLTOALL:
        splits = splits_of(description, size)
    row = math.prod(shape[1:])
    return [
        Share(
            begin * row,
            end * row,
            (reader - position - 1) % size * length,
            length // item,
            reader != position,
        )
        for reader, (begin, end) in enumerate(row_ranges(shape[0], size, splits))
    ]


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor has memory in common with another one; both are contiguous, or else the
    first is written only at the end."""
    begin, other_begin = one.data_ptr(), other.data_ptr()
    return (
        one.is_contiguous()
        and begin < other_begin + other.nbytes
        and other_begin < begin + one.nbytes
    )
