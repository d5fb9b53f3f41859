"""Reducing a vector between ranks over a network: in chunks, several of them on their way at once.

A chunk is cut into one part for each rank. Every rank sends each other one its part, folds what it
gets of its own part in the order of positions, and sends the result to all:

    rank 0   a0 b0   ── b0 ─▶   a0+a1  b1     ── a0+a1 ─▶   a0+a1  b0+b1
    rank 1   a1 b1   ◀─ a1 ──   a1   b0+b1    ◀─ b0+b1 ──   a0+a1  b0+b1

So each rank sends and receives 2 (W-1)/W of the vector, the least there can be, as around a ring;
but a chunk crosses the network twice, and not 2 (W-1) times. The next chunks are on their way when
one is folded: the wire does not stand idle.

The parts are folded by `collectives.arithmetic`, in one place each, so all ranks get the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.collectives.arithmetic import FOLDS, fold, row_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import timedelta

    from lockstitch.collectives.arithmetic import Scale
    from lockstitch.collectives.requests import ReduceOp

_CHUNK_BYTES: Final = 512 << 10
_AT_ONCE: Final = 4
"""So many chunks are on their way before the first is folded, and as many results."""
MOST_BYTES_UNDER_WAY: Final = 2 * _AT_ONCE * _CHUNK_BYTES
_PARTS, _RESULTS = 1, 2
"""What messages are about, as tags of the process group."""


def chunks_of(flat: torch.Tensor) -> list[torch.Tensor]:
    """Returns a vector in pieces, which share its memory; of an empty one, itself."""
    return list(torch.split(flat, max(1, _CHUNK_BYTES // flat.itemsize)))


class PeerFailedError(RuntimeError):
    """What was to go to the rank at a position, or to come from there, did not."""

    def __init__(self, position: int, why: object) -> None:
        super().__init__(str(why))
        self.position = position


class Exchange:
    """The reduction of a vector by the ranks of a process group."""

    def __init__(
        self,
        group: Any,
        position: int,
        size: int,
        op: ReduceOp,
        scale: Scale,
        timeout: timedelta,
    ) -> None:
        self._group = group
        self._position = position
        self._others = [other for other in range(size) if other != position]
        self._size = size
        self._fold = FOLDS[op]
        self._scale = scale
        self._timeout = timeout
        self._spare: list[list[torch.Tensor]] = []
        """Memory in which parts have come."""

    def run(self, chunks: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Reduces each of the chunks in place, and yields it when that is done."""
        begun: list[_Chunk] = []
        folded: list[_Chunk] = []
        for flat in chunks:
            begun.append(self._begin(flat))
            if len(begun) == _AT_ONCE:
                folded.append(self._end_parts(begun.pop(0)))
            if len(folded) == _AT_ONCE:
                yield self._end(folded.pop(0))
        folded += [self._end_parts(chunk) for chunk in begun]
        for chunk in folded:
            yield self._end(chunk)

    def _begin(self, flat: torch.Tensor) -> _Chunk:
        """Sends the others their parts, and gets ready for what they will send."""
        chunk = _Chunk(flat, [flat[slice(*rows)] for rows in row_ranges(len(flat), self._size)])
        mine = chunk.parts[self._position]
        spare = self._spare.pop() if self._spare else [torch.empty_like(mine) for _ in self._others]
        chunk.received = [space[: len(mine)] for space in spare]  # the last one may be shorter
        group = self._group
        if len(mine):
            for other, space in zip(self._others, chunk.received, strict=True):
                chunk.parts_to_come.append((other, group.recv([space], other, _PARTS)))
        wanted = [other for other in self._others if len(chunk.parts[other])]
        for other in wanted:
            # Nothing comes before all of the part that is there now has been taken.
            work = group.recv([chunk.parts[other]], other, _RESULTS)
            chunk.results_to_come.append((other, work))
        for other in wanted:
            chunk.sent.append((other, group.send([chunk.parts[other]], other, _PARTS)))
        return chunk

    def _end_parts(self, chunk: _Chunk) -> _Chunk:
        """Folds what all have sent of this rank's part, and sends them the result."""
        self._wait_for(chunk.parts_to_come)
        mine = chunk.parts[self._position]
        if not len(mine):
            return chunk
        parts = list(chunk.received)
        parts.insert(self._position, mine)
        # The second may be written while it is read, the third no more.
        out = mine if self._position < 2 else parts[0]
        self._scale.apply_(fold(self._fold, parts, out))
        if out is not mine:
            mine.copy_(out)
        self._spare.append(chunk.received)
        for other in self._others:
            chunk.sent.append((other, self._group.send([mine], other, _RESULTS)))
        return chunk

    def _end(self, chunk: _Chunk) -> torch.Tensor:
        self._wait_for([*chunk.results_to_come, *chunk.sent])
        return chunk.flat

    def _wait_for(self, works: Iterable[tuple[int, Any]]) -> None:
        for other, work in works:
            try:
                work.wait(self._timeout)
            except RuntimeError as error:
                raise PeerFailedError(other, error) from error


class _Chunk:
    """A chunk on its way, and the operations of the process group for it."""

    def __init__(self, flat: torch.Tensor, parts: list[torch.Tensor]) -> None:
        self.flat = flat
        self.parts = parts
        """By position."""
        self.received: list[torch.Tensor] = []
        """This rank's part, from each of the others."""
        self.parts_to_come: list[tuple[int, Any]] = []
        """With the position from which they come."""
        self.results_to_come: list[tuple[int, Any]] = []
        self.sent: list[tuple[int, Any]] = []
