"""What is known of each name: its description, how its tensors lie in memory, and how they are cut.

Equal descriptions, whichever rank they come from, are one `Definition`: so agreement is seen by
identity, and what was worked out once is kept. A rank numbers its own definitions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from lockstitch.collectives.arithmetic import FOLDS, UNSCALED, Scale, result_scale
from lockstitch.collectives.fusion import Layout, chunks
from lockstitch.collectives.requests import Description, Kind, ReduceOp, dtype_named
from lockstitch.collectives.shared_memory.log import NUMBERS
from lockstitch.collectives.shared_memory.segment import (
    SHORT_BYTES,
    SHORT_PLACES,
    SMALL_BYTES,
    SMALL_PLACES,
)

if TYPE_CHECKING:
    from lockstitch.collectives.fusion import Piece
    from lockstitch.collectives.shared_memory.segment import Segment

ONE_PHASE_BYTES = 1 << 20
"""Up to here private tensors are copied as a whole, beyond in chunks."""
# Smaller resident tensors are quicker copied than reduced in two phases. What is copied grows with
# the square of the ranks: each reads all of all others.
_IN_PLACE_BYTES_OF_TWO = 1 << 19
_IN_PLACE_BYTES_OF_MORE = 1 << 17
# Two ranks keep their rings in the cache. More of them mostly share processors, and each turn that
# they have to wait for costs more than the cache saves.
_CHUNK_BYTES_OF_TWO = 1 << 20
_CHUNK_BYTES_OF_MORE = 1 << 23
_LEAST_CHUNK_BYTES = 1 << 18
_ARENA_CHUNKS = 16

# Blocks of a slice stay in the cache between reading and writing. More ranks make more calls for
# each, so longer ones pay, though those of all ranks together may be in the outer cache only.
_BLOCK_BYTES_OF_TWO = 1 << 18
_BLOCK_BYTES_OF_MORE = 1 << 19

_MOVING = (Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER)
_MAY_BE_SHORT = (Kind.ALLREDUCE, Kind.BARRIER, *_MOVING)
_KEPT_VIEWS = 64
_KEPT_SLICES = 8


class Definition:
    """A description, and what follows from it."""

    __slots__ = (
        "_blocks",
        "_chunks",
        "_scale",
        "_views",
        "can_be_sliced",
        "content",
        "description",
        "dtypes",
        "fold",
        "has_single",
        "is_large",
        "is_quick",
        "is_short",
        "is_uniform",
        "item_sizes",
        "lane_begin",
        "lane_places",
        "lane_stride",
        "layout",
    )

    def __init__(self, description: Description, content: bytes) -> None:
        self.description = description
        self.content = content
        self.dtypes = tuple(dtype_named(name) for name in description.dtypes)
        self.item_sizes = [dtype.itemsize for dtype in self.dtypes]
        sizes = map(math.prod, description.shapes)
        self.layout = Layout.of(n * size for n, size in zip(sizes, self.item_sizes, strict=True))
        reduction = description.reduction
        # Whether any part of the result depends on the same part of the inputs only.
        self.can_be_sliced = (
            description.kind is Kind.ALLREDUCE
            and reduction is not None
            and reduction.op is not ReduceOp.ADASUM
        )
        self.fold = FOLDS[reduction.op] if self.can_be_sliced and reduction else torch.add
        """What combines two tensors."""
        self.has_single = self.can_be_sliced and len(self.dtypes) == 1
        """Whether it is a reduction of one tensor."""
        self.is_uniform = self.can_be_sliced and len(set(self.dtypes)) == 1
        """Whether it is a reduction of tensors of one dtype."""
        is_cut = self.can_be_sliced or (
            description.kind in _MOVING
            and len(self.dtypes) == 1
            and (reduction is None or reduction.op is not ReduceOp.ADASUM)
        )
        self.is_large = is_cut and self.layout.size > ONE_PHASE_BYTES
        """Whether private tensors of this description travel in chunks."""
        self.is_short = (
            description.kind in _MAY_BE_SHORT
            and len(self.dtypes) <= 1
            and self.layout.size <= SHORT_BYTES
            and (reduction is None or reduction.prescale == 1.0)
        )
        """Whether it may take the shortcut."""
        self.is_quick = self.has_single or (
            description.kind is Kind.BROADCAST and len(self.dtypes) == 1
        )
        """Whether it may do so in few steps (`quick`)."""
        is_small = self.layout.size <= SMALL_BYTES
        self.lane_places = SMALL_PLACES if is_small else SHORT_PLACES
        """How many of it there is room for in a lane."""
        self.lane_begin = 0 if is_small else SMALL_PLACES * SMALL_BYTES
        """Where these places begin in a lane."""
        self.lane_stride = SMALL_BYTES if is_small else SHORT_BYTES
        """How far they are from each other."""
        self._scale: tuple[int, Scale] = (0, UNSCALED)
        self._views: dict[int, list[torch.Tensor]] = {}
        self._chunks: dict[int, list[tuple[Piece, ...]]] = {}
        self._blocks: dict[tuple[int, ...], list[list[torch.Tensor]]] = {}

    def scale(self, set_size: int) -> Scale:
        """What is done to the result of a reduction at the end (`result_scale`)."""
        known, scale = self._scale
        if known != set_size:
            assert self.description.reduction is not None
            scale = result_scale(self.description.reduction, set_size)
            self._scale = set_size, scale
        return scale

    def is_given_by(self, rank: int) -> bool:
        """Whether a rank gives the others anything: of a broadcast the root only does."""
        description = self.description
        return bool(self.dtypes) and (
            description.kind is not Kind.BROADCAST or description.root == rank
        )

    def note_other(self, other: Definition) -> None:
        """Another rank has submitted that at the same time. Under the same name it has other sizes,
        as every rank of an uneven gathering has: the shortcut is for what is the same on all."""
        if other.description.name == self.description.name:
            self.is_short = False

    def view(self, segment: Segment, begin: int) -> torch.Tensor:
        """The single tensor that lies at byte `begin` of the segment."""
        return segment.kept(begin, self.dtypes[0], self.description.shapes[0])

    def views(self, segment: Segment, begin: int) -> list[torch.Tensor]:
        """The tensors as they lie one behind the other from byte `begin` of the segment on."""
        views = self._views.get(begin)
        if views is None:
            if len(self._views) >= _KEPT_VIEWS:
                self._views.clear()
            views = self._views[begin] = [
                segment.tensor(begin + offset, dtype, shape)
                for offset, dtype, shape in zip(
                    self.layout.offsets, self.dtypes, self.description.shapes, strict=True
                )
            ]
        return views

    def chunks(self, chunk_bytes: int) -> list[tuple[Piece, ...]]:
        """How the tensors are cut into chunks of that size."""
        cut = self._chunks.get(chunk_bytes)
        if cut is None:
            counts = [math.prod(shape) for shape in self.description.shapes]
            cut = self._chunks[chunk_bytes] = chunks(counts, self.item_sizes, chunk_bytes)
        return cut

    def blocks(
        self, segment: Segment, places: tuple[int, ...], index: int
    ) -> list[list[torch.Tensor]]:
        """Cuts what lies at each of these places, a single tensor or several of one dtype, into
        equal slices and the index-th of those into blocks; returns, for each block, all ranks'
        parts."""
        found = self._blocks.get(places)
        if found is None:
            if len(self._blocks) >= _KEPT_SLICES:
                self._blocks.clear()
            dtype, item = self.dtypes[0], self.dtypes[0].itemsize
            # Several are one vector, with what is between them. Behind a single one may be others.
            count = self.layout.size // item
            if self.has_single:
                count = math.prod(self.description.shapes[0])
            begin, end = slice_of(count, len(places), index, item)
            length = block_bytes_for(len(places)) // item
            found = self._blocks[places] = [
                [
                    # By `data` each has a version of its own, which `InPlace` needs.
                    segment.tensor(place + at * item, dtype, (min(length, end - at),)).data
                    for place in places
                ]
                for at in range(begin, end, length)
            ]
        return found


def slice_of(count: int, slices: int, index: int, item_size: int) -> tuple[int, int]:
    """The index-th of equal slices, cut at cache lines."""
    line = max(64 // item_size, 1)
    share = (count // slices + line - 1) // line * line
    begin = min(count, share * index)
    return begin, count if index == slices - 1 else min(count, share * (index + 1))


def in_place_bytes_for(set_size: int) -> int:
    """The size in bytes from which on a resident tensor is reduced where it lies."""
    return _IN_PLACE_BYTES_OF_TWO if set_size <= 2 else _IN_PLACE_BYTES_OF_MORE


def block_bytes_for(ranks: int) -> int:
    """How much of each rank's part is reduced at once."""
    return _BLOCK_BYTES_OF_TWO if ranks <= 2 else _BLOCK_BYTES_OF_MORE


def chunk_bytes_for(set_size: int, arena_bytes: int) -> int:
    """How long the chunks are in a process set of that many ranks, of which each has an arena of
    that size: several tensors at once must fit."""
    size = _CHUNK_BYTES_OF_TWO if set_size <= 2 else _CHUNK_BYTES_OF_MORE
    while size > _LEAST_CHUNK_BYTES and _ARENA_CHUNKS * size > arena_bytes:
        size //= 2
    return size


class Definitions:
    """All definitions of one process set, as one rank knows them."""

    def __init__(self) -> None:
        self._known: dict[bytes, Definition] = {}
        self._of_others: dict[tuple[int, int], Definition] = {}

    def intern(self, content: bytes) -> Definition:
        """The definition with these bytes."""
        definition = self._known.get(content)
        if definition is None:
            if len(self._known) >= NUMBERS:
                self._known.clear()  # only identity is lost
            definition = Definition(Description.decode(content), content)
            self._known[content] = definition
        return definition

    def learn(self, rank: int, number: int, content: bytes) -> None:
        """Another rank's number now stands for this."""
        self._of_others[rank, number] = self.intern(content)

    def of(self, rank: int, number: int) -> Definition:
        """What another rank's number stands for."""
        return self._of_others[rank, number]
