"""A ring of bytes from one process to another, for short messages to somebody who is looking.

A send and a receive are calls of the system, 5 µs for there and back. Where the receiver looks
again and again anyway (`transport.spin`), it may as well look into memory that both share: there
and back takes 1 µs.

    words   TAIL      how many bytes were put in                        written by the sender
            KNOCK     at which byte of the stream a knock lies (from 1)
            HEAD      how many bytes were taken out                     written by the receiver
            AWAKE     whether somebody looks
            TAKEN     how many bytes of the stream were taken
    data    a ring

The ring goes along a stream, which remains what one sleeps on, and both together keep their order
by two rules. The sender puts something in only where the receiver has taken all that the stream has
brought. And the receiver, when the stream has brought something, looks into the ring once more
before it says so: what is there then is older, and nothing can have been added that is not.

*Nobody sleeps on.* The receiver says that it looks no more, passes a fence, and looks once more.
The sender puts in, passes a fence, and sees whether somebody looks; if not, and nobody has taken
it, it sends one byte along the stream, a *knock*, having said before where it will lie.

An interrupt (Ctrl-C) may strike wherever a function is entered or has returned. So whatever belongs
together is written here without a call in between.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Final

from lockstitch.fences import STORES_ARE_ORDERED

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.memory.mapping import Mapping

IS_AVAILABLE: Final = STORES_ARE_ORDERED
"""Whether the order of plain loads and stores is the one that is written here."""

# The words of one writer share a cache line, and no other's.
TAIL: Final = 0
KNOCK: Final = 1
HEAD: Final = 8
AWAKE: Final = 9
TAKEN: Final = 10

NAME: Final = "lockstitch-ring"
"""Of the memory, as in `mapping`."""
RING_BYTES: Final = 8 * 1024
"""What one direction takes, words and data."""
_WORDS_BYTES: Final = 128
CAPACITY: Final = RING_BYTES - _WORDS_BYTES


def both_ways(memory: Mapping) -> tuple[memoryview, memoryview]:
    """The memory of two rings: what the calling side writes, and what the called side writes."""
    array: Any = (ctypes.c_ubyte * memory.size).from_address(memory.address)
    array.mapping = memory
    view = memoryview(array).cast("B")
    return view[:RING_BYTES], view[RING_BYTES : 2 * RING_BYTES]


class Ring:
    """Base of the two ends."""

    def __init__(self, memory: memoryview) -> None:
        self.words = memory[:_WORDS_BYTES].cast("Q")
        self._data = memory[_WORDS_BYTES:RING_BYTES]
        self._fence = threading.Lock()  # taking and letting go of it is one; see `fences`


class RingWriter(Ring):
    """The sending end; one thread at a time."""

    def __init__(self, memory: memoryview) -> None:
        super().__init__(memory)
        self._tail = 0
        self.is_doubtful = False
        """Perhaps nobody will notice what was put in last."""

    def put(self, frame: bytes, position: int) -> bool:
        """Puts a frame in, if somebody looks who has taken all `position` bytes of the stream, and
        if there is room."""
        words = self.words
        if not words[AWAKE] or words[TAKEN] != position:
            return False
        size = len(frame)
        tail = self._tail + size
        if tail - words[HEAD] > CAPACITY:
            return False
        start = self._tail % CAPACITY
        end = start + size
        if end <= CAPACITY:
            self._data[start:end] = frame
        else:
            first = CAPACITY - start
            self._data[start:] = frame[:first]
            self._data[: end - CAPACITY] = frame[first:]
        self.is_doubtful = True
        words[TAIL] = self._tail = tail
        with self._fence:
            pass
        if words[AWAKE] or words[HEAD] == tail:
            self.is_doubtful = False
        return True

    def is_noticed(self) -> bool:
        """Whether somebody looks, or has taken all."""
        return bool(self.words[AWAKE] or self.words[HEAD] == self._tail)


class RingReader(Ring):
    """The receiving end; one thread at a time."""

    def __init__(self, memory: memoryview) -> None:
        super().__init__(memory)
        self.head = 0

    def look_away(self) -> bool:
        """Says that nobody looks any more; whether there is something in it at last."""
        self.words[AWAKE] = 0
        with self._fence:
            pass
        return bool(self.words[TAIL] != self.head)

    def watch(self, now: Callable[[], float], until: float) -> float:
        """Looks until there is something in it, or it is that time; returns what time it is."""
        words, head = self.words, self.head
        while (time := now()) < until and words[TAIL] == head:
            pass
        return time

    def take(self, view: memoryview, counts: list[int]) -> bool:
        """Moves what is there to `view`, as far as that has room, and appends its number; False if
        there is nothing. Raises `ConnectionError` where the other end has written nonsense."""
        words, head = self.words, self.head
        count = words[TAIL] - head
        if not count:
            return False
        if not 0 < count <= CAPACITY:
            raise ConnectionError(f"a ring of {CAPACITY} bytes cannot hold {count}")
        count = min(count, len(view))
        start = head % CAPACITY
        end = start + count
        if end <= CAPACITY:
            view[:count] = self._data[start:end]
        else:
            first = CAPACITY - start
            view[:first] = self._data[start:]
            view[first:count] = self._data[: end - CAPACITY]
        counts += (count,)
        words[HEAD] = self.head = head + count
        return True
