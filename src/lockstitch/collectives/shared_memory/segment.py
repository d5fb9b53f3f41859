"""The segment: one piece of memory that all ranks of a host map, and where things are in it.

It is an anonymous file (memfd) without a name, so that nothing is left when the last rank is gone.
It is sparse: only what was touched takes memory. In it lie, one behind the other,

    sleepers          a word for each rank: whether it sleeps and wants to be woken
    places            a word for each rank: on which processor it waits
    control areas     for each process set and each pair of ranks: the tails, the words of results,
                      the readers' cursors, what they have finished, the logs, and the lanes, in
                      which small tensors lie (see `lanes`)
    arenas            for each rank: its tensors
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstitch.collectives.process_sets import FIRST_PAIR
from lockstitch.memory import mapping
from lockstitch.memory.mapping import Mapping
from lockstitch.memory.sizes import PAGE_BYTES, aligned
from lockstitch.memory.views import Views

if TYPE_CHECKING:
    import torch

SHORT_BYTES: Final = 1 << 16
"""Up to here a single tensor may take the shortcut."""
SMALL_BYTES: Final = 1 << 12
"""Up to here there are more places for it."""
SMALL_PLACES: Final = 64
SHORT_PLACES: Final = 4
RESULTS_BEGIN: Final = SMALL_PLACES * SMALL_BYTES + SHORT_PLACES * SHORT_BYTES
"""In a lane, behind the places for tensors; those for results are the same once more."""
LANE_BYTES: Final = 2 * RESULTS_BEGIN
_WORD: Final = 8
_KEPT_TENSORS: Final = 4096


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of everything; the same on all ranks."""

    ranks: int
    arena_bytes: int = 1 << 36
    log_words: int = 1 << 16
    most_sets: int = FIRST_PAIR

    @property
    def sleepers_bytes(self) -> int:
        """With the places."""
        return _pages(2 * self.ranks * _WORD)

    @property
    def tails_bytes(self) -> int:
        """With the words of results."""
        return _pages(2 * self.ranks * _WORD)

    @property
    def cursors_bytes(self) -> int:
        """With the words of what is finished."""
        return _pages(2 * self.ranks * self.ranks * _WORD)

    @property
    def control_bytes(self) -> int:
        return self.logs_end + self.ranks * LANE_BYTES

    @property
    def logs_end(self) -> int:
        logs = self.ranks * self.log_words * _WORD
        return _pages(self.tails_bytes + self.cursors_bytes + logs)

    @property
    def arenas_begin(self) -> int:
        pairs = self.ranks * (self.ranks - 1) // 2
        return self.sleepers_bytes + (self.most_sets + pairs) * self.control_bytes

    @property
    def size(self) -> int:
        return self.arenas_begin + self.ranks * self.arena_bytes


def _pages(size: int) -> int:
    return aligned(size, PAGE_BYTES)


def create(geometry: Geometry) -> int:
    """A new segment; returns its descriptor, to be handed around and closed when all map it."""
    descriptor = mapping.create_file("lockstitch-reductions")
    os.ftruncate(descriptor, geometry.size)
    return descriptor


class Segment(Views):
    """The segment as one rank has it mapped: for as long as a tensor in it lives."""

    def __init__(self, descriptor: int, geometry: Geometry) -> None:
        self.geometry = geometry
        self.mapping = Mapping(descriptor, geometry.size)
        super().__init__(self.mapping.tensor(), _KEPT_TENSORS)
        self.arena_begins = [
            geometry.arenas_begin + rank * geometry.arena_bytes for rank in range(geometry.ranks)
        ]
        """The place at which the arena of each rank begins, in bytes from the segment's beginning.
        """

    def words(self, begin: int, count: int) -> memoryview:
        """`count` words from byte `begin` on."""
        # The stubs do not know that arrays offer their memory.
        view = memoryview(self.bytes[begin : begin + count * _WORD].numpy())  # type: ignore[arg-type]
        return view.cast("Q")

    def sleepers(self) -> memoryview:
        """A word for each rank."""
        return self.words(0, self.geometry.ranks)

    def places(self) -> memoryview:
        """A word for each rank."""
        return self.words(self.geometry.ranks * _WORD, self.geometry.ranks)

    def tails(self, set_id: int, count: int) -> memoryview:
        """A process set's tails, one for each member."""
        return self.words(self._control(set_id), count)

    def results(self, set_id: int, count: int) -> memoryview:
        """A word for each member: whether others find a result in its lane."""
        return self.words(self._control(set_id) + self.geometry.ranks * _WORD, count)

    def cursors(self, set_id: int, writer: int, count: int) -> memoryview:
        """How far each member has read the log of the `writer`th."""
        begin = self._control(set_id) + self.geometry.tails_bytes + writer * count * _WORD
        return self.words(begin, count)

    def finished(self, set_id: int, writer: int, count: int) -> memoryview:
        """How much each member has finished of what the `writer`th has put into its lane."""
        return self.cursors(set_id, self.geometry.ranks + writer, count)

    def log(self, set_id: int, writer: int) -> memoryview:
        """The log of a process set's `writer`th member."""
        geometry = self.geometry
        logs = self._control(set_id) + geometry.tails_bytes + geometry.cursors_bytes
        return self.words(logs + writer * geometry.log_words * _WORD, geometry.log_words)

    def lane(self, set_id: int, writer: int) -> int:
        """Where the lane of a process set's `writer`th member begins."""
        return self._control(set_id) + self.geometry.logs_end + writer * LANE_BYTES

    def vector(self, begin: int, dtype: torch.dtype, count: int) -> torch.Tensor:
        """A kept tensor (see `Views.kept`) of one dimension."""
        return self.kept(begin, dtype, (count,))

    def _control(self, set_id: int) -> int:
        most = self.geometry.most_sets
        if most <= set_id < FIRST_PAIR:
            raise ValueError(f"more than {most} process sets in one session")
        place = set_id if set_id < FIRST_PAIR else most + set_id - FIRST_PAIR
        return self.geometry.sleepers_bytes + place * self.geometry.control_bytes
