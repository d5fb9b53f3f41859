"""Logs in shared memory: what each rank did, in order, as words of 8 bytes.

Every rank writes one log in each process set, and reads those of the others; nobody else writes it.
A log is a ring of words. Its *tail* counts the words ever written, and moves only when a record is
whole. Each reader's *cursor* says how far it has read, so that the writer overruns nobody.

    bits 0-3   what happened
    bits 4-19  the writer's number for the name and description
    bits 20-63 an argument

`DEFINE` gives a number its meaning and is followed by the description itself; a name is described
once and then takes one word for each submission. `LEAVE` is followed by a text, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.fences import STORES_ARE_ORDERED, Fence

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFINE: Final = 1
"""The number stands for a description from now on; the argument is the length of that in bytes."""
SUBMIT: Final = 2
"""An operation was submitted; the argument says where the tensors are, with a flag (below)."""
SLICE_DONE: Final = 3
"""So many chunks, the argument, are in the ring; or, of a resident tensor, its slice is reduced."""
DONE: Final = 4
"""The rank reads nothing more of the operation."""
PLACE: Final = 5
"""The tensors lie, as a whole, at the place that the argument names."""
JOIN: Final = 6
"""The rank has run out of data, at a time (bits 4-63, nanoseconds)."""
LEAVE: Final = 7
"""The session has ended here; the last record. The argument is the length in bytes of the reason,
which follows, with a flag (below)."""
REDUCED: Final = 8
"""The rank's slice of so many chunks, the argument, is reduced."""

RESIDENT: Final = 1 << 43
"""The flag of SUBMIT by which the place is that of the tensor itself, not of a copy."""
SHORT: Final = 1 << 42
"""The flag of SUBMIT by which the tensor lies in the rank's lane, in the place of that number;
nothing else that the rank had submitted before is under way but SHORTs, and these only with the
next flag (see `shortcut`)."""
QUEUED: Final = 1 << 41
"""The flag of a SHORT before which others of the rank are under way."""
BY_DEATH: Final = 1 << 43
"""The flag of LEAVE by which another rank has died."""
PLACE_MASK: Final = (1 << 42) - 1
NUMBERS: Final = 1 << 16
SHORT_SUBMIT: Final = SUBMIT | SHORT << 20
"""A SUBMIT with the first of these flags, of number 0."""
QUEUED_SUBMIT: Final = SHORT_SUBMIT | QUEUED << 20
_SHORT_MASK: Final = 15 | SHORT << 20
_QUEUED_MASK: Final = _SHORT_MASK | QUEUED << 20

_MOST_REASON_BYTES: Final = 1024


def word(what: int, number: int = 0, argument: int = 0) -> int:
    """Packs a word."""
    return what | number << 4 | argument << 20


def is_short(word: int) -> bool:
    """Whether it is a SUBMIT with the flag SHORT."""
    return word & _SHORT_MASK == SHORT_SUBMIT


def is_queued(word: int) -> bool:
    """Whether it is one with both flags."""
    return word & _QUEUED_MASK == QUEUED_SUBMIT


def definition(number: int, content: bytes) -> list[int]:
    """The words of a DEFINE record."""
    return [word(DEFINE, number, len(content)), *_words(content)]


def leave_record(reason: bytes, is_death: bool) -> list[int]:
    """The words of a LEAVE record. A long reason is cut."""
    reason = reason[:_MOST_REASON_BYTES]
    return [word(LEAVE, 0, len(reason) | BY_DEATH * is_death), *_words(reason)]


def content(words: Sequence[int], at: int) -> tuple[bytes, int]:
    """The bytes that the DEFINE or LEAVE at index `at` announces, and the index behind them."""
    length = (words[at] >> 20) & PLACE_MASK
    end = at + 1 + (length + 7) // 8
    body = b"".join(each.to_bytes(8, "little") for each in words[at + 1 : end])
    return body[:length], end


def _words(content: bytes) -> list[int]:
    padded = content + bytes(-len(content) % 8)
    return memoryview(padded).cast("Q").tolist()


class LogWriter:
    """Writes this rank's own log. `tails` and `cursors` are words in shared memory: a tail for each
    writer, and for each writer a row of its readers' cursors."""

    def __init__(
        self, ring: memoryview, tails: memoryview, cursors: memoryview, index: int
    ) -> None:
        self._ring = ring
        self._tails = tails
        self._index = index
        self._size = len(ring)
        self._tail = 0
        self._limit = self._size
        self._cursors = cursors
        self._fence = Fence()

    @property
    def written(self) -> int:
        """Words so far."""
        return self._tail

    def has_room(self, count: int) -> bool:
        """Whether `count` words can be appended without overrunning a reader."""
        if self._tail + count <= self._limit:
            return True
        readers = [self._cursors[i] for i in range(len(self._cursors)) if i != self._index]
        self._limit = min(readers, default=self._tail) + self._size
        return self._tail + count <= self._limit

    def append_if_room(self, word: int, spare: int) -> bool:
        """Writes a record of one word, if there is room for it and `spare` more."""
        tail = self._tail
        if tail + spare >= self._limit and not self.has_room(spare + 1):
            return False
        self._ring[tail % self._size] = word
        if not STORES_ARE_ORDERED:
            self._fence()
        self._tails[self._index] = self._tail = tail + 1
        return True

    def append(self, words: Sequence[int]) -> None:
        """Writes a record; there must be room."""
        ring, size, tail = self._ring, self._size, self._tail
        for each in words:
            ring[tail % size] = each
            tail += 1
        if not STORES_ARE_ORDERED:
            self._fence()
        self._tails[self._index] = self._tail = tail


class LogReader:
    """Reads another rank's log."""

    def __init__(
        self, ring: memoryview, tails: memoryview, cursors: memoryview, writer: int, reader: int
    ) -> None:
        self.ring = ring
        self.size = len(ring)
        self._tails = tails
        self._cursors = cursors
        self._writer = writer
        self._reader = reader
        self.position = 0
        """Words read so far."""
        self._told = 0
        self.fence = Fence()
        """To be passed between a look at the tail and one into the ring, see `fences`."""

    def read(self) -> Sequence[int]:
        """The words that are new; whole records only. Who has taken them in calls `tell`."""
        tail = self._tails[self._writer]
        begin = self.position
        if tail == begin:
            return ()
        if not STORES_ARE_ORDERED:
            self.fence()
        at, end = begin % self.size, (tail - 1) % self.size + 1
        if at < end:
            words: list[int] = self.ring[at:end].tolist()
        else:
            words = self.ring[at:].tolist() + self.ring[:end].tolist()
        self.position = tail
        return words

    def peek(self) -> int:
        """The next word, where the tail says that there is one."""
        if not STORES_ARE_ORDERED:
            self.fence()
        return self.ring[self.position % self.size]

    def tell(self) -> None:
        """Tells the writer, now and then, how far this rank has read, which will read on from
        `position`. The cursor is for a writer that runs out of room: often enough is enough."""
        if self.position - self._told >= self.size // 8:
            if not STORES_ARE_ORDERED:
                self.fence()
            self._told = self._cursors[self._reader] = self.position
