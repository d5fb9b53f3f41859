"""Reducing a vector between ranks over a network: in chunks, several of them on their way at once.

A chunk is cut into one part for each rank. Every rank sends each other one its part, folds what it
gets of its own part in the order of positions, and sends the result to all:

    rank 0   a0 b0   ── b0 ─▶   a0+a1  b1     ── a0+a1 ─▶   a0+a1  b0+b1
    rank 1   a1 b1   ◀─ a1 ──   a1   b0+b1    ◀─ b0+b1 ──   a0+a1  b0+b1

So each rank sends and receives 2 (W-1)/W of the vector, the least there can be, as around a ring;
but a chunk crosses the network twice, and not 2 (W-1) times. The next chunks are on their way when
one is folded: the wire does not stand idle.

The parts are folded by `collectives.arithmetic`, in one place each, so all ranks get the same bits.
Here is decided what leaves and where to put what comes; `chunk_transfer` moves it. No I/O.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from lockstitch.collectives.arithmetic import FOLDS, fold, row_ranges
from lockstitch.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lockstitch.collectives.arithmetic import Scale
    from lockstitch.collectives.requests import ReduceOp

LEAST_CHUNK_BYTES: Final = 64 << 10
MOST_CHUNK_BYTES: Final = 1 << 20
_CHUNKS: Final = 4
"""Into so many chunks is a vector cut, where they get neither smaller nor larger than that."""
_AT_ONCE: Final = 4
"""So many chunks are on their way before the first is folded, and as many results."""
PART, RESULT, AHEAD = 1, 2, 3
"""What a frame carries: the sender's numbers of the receiver's part of a chunk, or what the
sender's part of it comes to; or such a part of the first chunk, before its order (`ahead`)."""


def chunks_of(flat: torch.Tensor, least_bytes: int = LEAST_CHUNK_BYTES) -> list[torch.Tensor]:
    """Returns a vector in pieces, which share its memory; of an empty one, none."""
    if not len(flat):
        return []
    nbytes = min(max(flat.nbytes // _CHUNKS, least_bytes), MOST_CHUNK_BYTES)
    return list(torch.split(flat, max(1, nbytes // flat.itemsize)))


def parts_of(chunk: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Returns the part of a chunk that each position adds up; they share its memory."""
    return [chunk[slice(*rows)] for rows in row_ranges(len(chunk), size)]


class Frame(NamedTuple):
    """Numbers that go from one rank to another: of which kind, and of which chunk."""

    kind: int
    chunk: int
    content: torch.Tensor


class Exchange:
    """What the rank at `position` among `size` does in the reduction of a vector of that `dtype`,
    whose chunks have so many elements (`counts`). If `is_ahead` the parts of the first were sent
    ahead: only these may come before it begins here."""

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        position: int,
        size: int,
        counts: Sequence[int],
        dtype: torch.dtype,
        op: ReduceOp,
        scale: Scale,
        *,
        is_ahead: bool = False,
    ) -> None:
        self._is_ahead = is_ahead
        self._position = position
        self._others = [other for other in range(size) if other != position]
        self._size = size
        self._counts = counts
        self._dtype = dtype
        self._fold = FOLDS[op]
        self._scale = scale
        self.outgoing: dict[int, deque[Frame]] = {other: deque() for other in self._others}
        """What leaves next, by position: see `has_left`."""
        with_part = [[n for n, count in enumerate(counts) if count > p] for p in range(size)]
        self._to_come = {
            other: {PART: deque(with_part[position]), RESULT: deque(with_part[other])}
            for other in self._others
        }
        """Of which chunks frames are still to come, by position and kind."""
        self._begun: dict[int, _Chunk] = {}
        """The chunks on their way, in order."""
        self._received: dict[int, dict[int, torch.Tensor]] = {}
        """What has come of this rank's part, by chunk and position."""
        self._spare: list[torch.Tensor] = []
        """Memory in which parts have come."""
        self._next = 0
        self._folded = 0
        """So many chunks have been begun, and folded."""

    def __repr__(self) -> str:
        return f"<Exchange · {self._folded} of {len(self._counts)} chunks folded>"

    @property
    def is_over(self) -> bool:
        """Whether all chunks have been reduced and taken out."""
        return self._next == len(self._counts) and not self._begun

    @property
    def wants_chunk(self) -> bool:
        """Whether the next chunk may begin."""
        return (
            self._next < len(self._counts)
            and self._next - self._folded < _AT_ONCE
            and len(self._begun) < 2 * _AT_ONCE
        )

    def frames_to_come(self, other: int) -> int:
        """Returns how many frames are still to come from a position."""
        return sum(map(len, self._to_come[other].values()))

    def begin(self, flat: torch.Tensor) -> None:
        """Takes the next chunk, which is reduced in place."""
        number = self._next
        self._next += 1
        chunk = self._begun[number] = _Chunk(flat, parts_of(flat, self._size))
        wanted = [other for other in self._others if len(chunk.parts[other])]
        chunk.results_to_come = len(wanted)
        for other in wanted if number or not self._is_ahead else ():
            self._send(other, Frame(PART, number, chunk.parts[other]))
        self._fold_ready()

    def space(self, other: int, kind: int, number: int, nbytes: int) -> torch.Tensor:
        """Returns where the next frame from a position goes. Raises `ProtocolError` where nothing
        such can come."""
        to_come = self._to_come[other].get(kind)
        if not to_come or to_come[0] != number:
            raise ProtocolError(f"a frame of kind {kind} of chunk {number}, which is not its turn")
        if kind == PART:
            space = self._new_space(number)
        elif number in self._begun:
            # All of the part that is there now has been taken, or no result could come.
            space = self._begun[number].parts[other]
        else:
            raise ProtocolError(f"a result of chunk {number}, which has not begun")
        if space.nbytes != nbytes:
            raise ProtocolError(f"{nbytes} bytes of chunk {number}, and not {space.nbytes}")
        return space

    def has_come(self, other: int, frame: Frame) -> None:
        """A frame from a position is where `space` has said."""
        self._to_come[other][frame.kind].popleft()
        if frame.kind == PART:
            self._received.setdefault(frame.chunk, {})[other] = frame.content
            self._fold_ready()
        else:
            self._begun[frame.chunk].results_to_come -= 1

    def has_left(self, other: int) -> None:
        """The first of the frames that go to a position is on its way, and its memory free."""
        self._begun[self.outgoing[other].popleft().chunk].to_send -= 1

    def finished(self) -> Iterator[torch.Tensor]:
        """Takes out the chunks that are reduced by now, in order."""
        for number, chunk in list(self._begun.items()):
            if number >= self._folded or chunk.results_to_come or chunk.to_send:
                break
            del self._begun[number]
            yield chunk.flat

    # ------------------------------------------------------------ inside

    def _send(self, other: int, frame: Frame) -> None:
        self.outgoing[other].append(frame)
        self._begun[frame.chunk].to_send += 1

    def _fold_ready(self) -> None:
        """Folds what all have sent of this rank's part, and sends them the result. What one rank
        sends comes in order, so the chunks are complete in order, too."""
        while self._folded < self._next:
            number = self._folded
            mine = self._begun[number].parts[self._position]
            received = self._received.get(number, {})
            if len(mine) and len(received) < len(self._others):
                return
            self._folded += 1
            if len(mine):
                self._reduce(mine, [received[other] for other in self._others])
                self._received.pop(number, None)
                for other in self._others:
                    self._send(other, Frame(RESULT, number, mine))

    def _reduce(self, mine: torch.Tensor, received: list[torch.Tensor]) -> None:
        parts = received.copy()
        parts.insert(self._position, mine)
        # The second may be written while it is read, the third no more.
        out = mine if self._position < 2 else parts[0]
        self._scale.apply_(fold(self._fold, parts, out))
        if out is not mine:
            mine.copy_(out)
        self._spare += received

    def _new_space(self, number: int) -> torch.Tensor:
        begin, end = row_ranges(self._counts[number], self._size)[self._position]
        space = self._spare.pop() if self._spare else torch.empty(end - begin, dtype=self._dtype)
        if len(space) != end - begin:  # the last one is shorter
            space = torch.empty(end - begin, dtype=self._dtype)
        return space


class _Chunk:
    """A chunk on its way."""

    def __init__(self, flat: torch.Tensor, parts: list[torch.Tensor]) -> None:
        self.flat = flat
        self.parts = parts
        """By position."""
        self.results_to_come = 0
        self.to_send = 0
        """So many frames of it have not left yet."""
