"""A ring of bytes from one process to another, for short messages to somebody who is looking.

A send and a receive are calls of the system, 5 µs for there and back. Where the receiver looks
again and again anyway (`transport.spin`), it may as well look into memory that both share: there
and back takes 1 µs.

    words   TAIL      how many bytes were put in                        written by the sender
            KNOCK     at which byte of the stream a knock lies (from 1)
            SENT      how many bytes have been sent along the stream
            HEAD      how many bytes were taken out                     written by the receiver
            SLEEPS    whether the receiver has to be woken
            TAKEN     how many bytes of the stream were taken
            PLACE     on which processor the receiver has waited last (from 1)
    data    a ring

The ring goes along a stream, which remains what one sleeps on, and both together keep their order
by two rules. The sender puts something in only where the receiver has taken all that the stream has
brought. And the receiver, when the stream has brought something, looks into the ring once more
before it says so: what is there then is older, and nothing can have been added that is not.
Who watches the ring need not look into the stream: `SENT` tells of what it brings.

Nobody misses anything while falling asleep: that is the protocol of `doorbell`. A receiver is taken
to sleep from the beginning, and whenever it does not look; then the sender leaves the ring alone.
Where it has put something in and finds that the receiver sleeps and has not taken it, it sends one
byte along the stream, a *knock*, having said before where it will lie.

An interrupt (Ctrl-C) may strike wherever a function is entered or has returned. So whatever belongs
together is written here without a call in between.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

from lockstitch.fences import STORES_ARE_ORDERED
from lockstitch.memory import mapping
from lockstitch.memory.doorbell import ASLEEP, Doorbell

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.memory.mapping import Mapping

IS_AVAILABLE: Final = STORES_ARE_ORDERED
"""Whether the order of plain loads and stores is the one that is written here."""

# The words of one writer share a cache line, and no other's.
TAIL: Final = 0
KNOCK: Final = 1
SENT: Final = 2
HEAD: Final = 8
SLEEPS: Final = 9
TAKEN: Final = 10
PLACE: Final = 11
WORDS_BYTES: Final = 128

NAME: Final = "lockstitch-ring"
"""The name of the memory, as in `mapping`."""
RING_BYTES: Final = 8 * 1024
"""What one direction takes, words and data."""
CAPACITY: Final = RING_BYTES - WORDS_BYTES


def create() -> tuple[Mapping, int]:
    """Fresh memory of two rings whose receivers sleep, and its descriptor, which the caller
    closes. Raises `OSError`."""
    memory, descriptor = mapping.create(2 * RING_BYTES, NAME)
    for each in both_ways(memory):
        Ring(each).words[SLEEPS] = ASLEEP
    return memory, descriptor


def both_ways(memory: Mapping) -> tuple[memoryview, memoryview]:
    """The memory of two rings: what the calling side writes, and what the called side writes."""
    array: Any = (ctypes.c_ubyte * memory.size).from_address(memory.address)
    array.mapping = memory
    view = memoryview(array).cast("B")
    return view[:RING_BYTES], view[RING_BYTES : 2 * RING_BYTES]


class Ring:
    """A ring in `memory`, words and data: where the bytes lie of all that ever passes through it,
    counted from the first one."""

    def __init__(self, memory: memoryview) -> None:
        self.words = memory[:WORDS_BYTES].cast("Q")
        self.doorbell = Doorbell(self.words)
        self._data = memory[WORDS_BYTES:]
        self.capacity = len(self._data)
        """How many bytes it holds."""

    def store(self, position: int, content: bytes) -> None:
        """Writes what is to be the bytes from `position` on; there must be room."""
        start = position % self.capacity
        end = start + len(content)
        if end <= self.capacity:
            self._data[start:end] = content
        else:
            first = self.capacity - start
            self._data[start:] = content[:first]
            self._data[: end - self.capacity] = content[first:]

    def load(self, position: int, count: int) -> memoryview | bytes:
        """The `count` bytes from `position` on, to be copied before they are given up."""
        start = position % self.capacity
        end = start + count
        if end <= self.capacity:
            return self._data[start:end]
        return bytes(self._data[start:]) + bytes(self._data[: end - self.capacity])


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
        if words[SLEEPS] or words[TAKEN] != position:
            return False
        before, capacity = self._tail, self.capacity
        tail = before + len(frame)
        if tail - words[HEAD] > capacity:
            return False
        start = before % capacity
        end = start + tail - before
        if end <= capacity:  # as `store` would, and sooner
            self._data[start:end] = frame
        else:
            self.store(before, frame)
        self.is_doubtful = True
        words[TAIL] = self._tail = tail
        if not self.doorbell.reason(SLEEPS) or words[HEAD] == tail:  # `is_noticed`, a call less
            self.is_doubtful = False
        return True

    def is_noticed(self) -> bool:
        """Whether somebody looks, or has taken all."""
        return not self.doorbell.reason(SLEEPS) or self.words[HEAD] == self._tail


class RingReader(Ring):
    """The receiving end; one thread at a time."""

    def __init__(self, memory: memoryview) -> None:
        super().__init__(memory)
        self.head = 0

    def look_away(self) -> bool:
        """Says that nobody looks any more; whether there is something in it at last."""
        self.doorbell.announce_sleep(SLEEPS)
        return bool(self.words[TAIL] != self.head)

    def watch(self, now: Callable[[], float], until: float) -> float:
        """Looks until something has come into it or along the stream, or it is that time; returns
        what time it is."""
        words, head = self.words, self.head
        taken = words[TAKEN]
        while (time := now()) < until and words[TAIL] == head and words[SENT] <= taken:
            pass
        return time

    def take(self, view: memoryview, counts: list[int]) -> bool:
        """Moves what is there to `view`, as far as that has room, and appends its number; False if
        there is nothing. Raises `ConnectionError` where the other end has written nonsense."""
        words, head = self.words, self.head
        count = words[TAIL] - head
        if not count:
            return False
        capacity = self.capacity
        if not 0 < count <= capacity:
            raise ConnectionError(f"a ring of {capacity} bytes cannot hold {count}")
        most = len(view)
        count = count if count < most else most
        start = head % capacity
        end = start + count
        # As `load` would, and sooner, where it is in one piece.
        view[:count] = self._data[start:end] if end <= capacity else self.load(head, count)
        counts += (count,)
        words[HEAD] = self.head = head + count
        return True
