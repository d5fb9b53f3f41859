"""Messages between two processes through memory that both see, and waiting for them.

Each direction is a ring of bytes that one side writes and the other reads. Two counters say how
many bytes have ever been written and read; a message is there when the first of them has moved. So
a message costs no system call, as long as the reader is awake.

Falling asleep and being woken takes 50 µs and more on a virtual machine, several times what a small
slot needs for its step. So a reader looks again and again for a while first, if waits of this kind
have been short of late. It does not yield the CPU between two looks: a system may take that for a
wish to share it, and run both processes on one. Then it says that it sleeps, passes a fence, looks
once more, and sleeps on a socket; who writes passes a fence after it and looks whether to wake
somebody. The end of the socket is the death of the other side.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from typing import TYPE_CHECKING, Final

from lockstitch.fences import Fence
from lockstitch.memory.waiting import DurationEstimate

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST: Final = 60_000
"""Bytes of a message."""
SPIN_SECONDS: Final = 1e-3
_RING: Final = 1 << 17
_LINE: Final = 64  # bytes of a cache line: counters of two sides do not share one
_WORDS: Final = _LINE // 8
_CONTROL: Final = 1024
_LOOKS: Final = 40  # between two looks at the clock
_WRAPPED: Final = (1 << 64) - 1  # in place of a length: the message is at the beginning of the ring

# Numbers of the words in the shared memory; of each pair the first belongs to the direction 0.
_WRITTEN: Final = (0, _WORDS)
_READ: Final = (2 * _WORDS, 3 * _WORDS)
_ASLEEP: Final = (4 * _WORDS, 5 * _WORDS)
_FOR_MESSAGE: Final = 1
_FOR_ROOM: Final = 2


class Mailbox:
    """One side's view of the two rings. `side` is 0 or 1: it writes the ring of that number and
    reads the other. `spin_seconds`: how long one looks before sleeping; 0 where there are fewer
    cores than processes."""

    def __init__(
        self,
        memory: mmap.mmap,
        side: int,
        bell: socket.socket,
        spin_seconds: float = SPIN_SECONDS,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._memory = memory
        self._words = memoryview(memory)[:_CONTROL].cast("Q")
        self._side = side
        self._out = _CONTROL + side * _RING
        self._in = _CONTROL + (1 - side) * _RING
        self._bell = bell
        self._spin_seconds = spin_seconds
        self._now = now
        self._fence = Fence()
        self._estimates: dict[int, DurationEstimate] = {}

    def __repr__(self) -> str:
        words, side = self._words, self._side
        waiting = words[_WRITTEN[1 - side]] - words[_READ[1 - side]]
        return f"<Mailbox of side {side} · {waiting} bytes to read>"

    def has_message(self) -> bool:
        """Whether `receive` would return at once."""
        return bool(self._words[_WRITTEN[1 - self._side]] != self._words[_READ[1 - self._side]])

    def send(self, message: bytes, drain: Callable[[], None] | None = None) -> bool:
        """Writes a message of at most `LARGEST` bytes; waits until there is room for it. False if
        the other side is gone.

        `drain` takes in what has come. One of the two sides needs it: if both waited for room
        without reading, it would be for ever.
        """
        words, side = self._words, self._side
        written = words[_WRITTEN[side]]
        at, size = written % _RING, 8 + (len(message) + 7 & ~7)
        skipped = _RING - at if at + size > _RING else 0
        while written + skipped + size - words[_READ[side]] > _RING:
            if drain is not None and self.has_message():
                drain()
            elif not self._sleep_until_room(written + skipped + size - _RING, drain is not None):
                return False
        if skipped:
            start = self._out + at
            self._memory[start : start + 8] = _WRAPPED.to_bytes(8, "little")
            at = 0
        start = self._out + at
        self._memory[start : start + 8] = len(message).to_bytes(8, "little")
        self._memory[start + 8 : start + 8 + len(message)] = message
        self._fence()
        words[_WRITTEN[side]] = written + skipped + size
        self._fence()
        return not words[_ASLEEP[1 - side]] or self._ring()

    def receive(self, kind: int = 0) -> bytes | None:
        """The next message; None when the other side is gone. `kind`: what is waited for; waits of
        one kind are taken to be alike."""
        words, written, read = self._words, _WRITTEN[1 - self._side], _READ[1 - self._side]
        if words[written] == words[read] and not self._wait(kind):
            return None
        count = words[read]
        at = count % _RING
        start = self._in + at
        length = int.from_bytes(self._memory[start : start + 8], "little")
        if length == _WRAPPED:
            count += _RING - at
            start = self._in
            length = int.from_bytes(self._memory[start : start + 8], "little")
        message = self._memory[start + 8 : start + 8 + length]
        self._fence()
        words[read] = count + 8 + (length + 7 & ~7)
        self._fence()
        if words[_ASLEEP[1 - self._side]] == _FOR_ROOM:
            self._ring()
        return message

    def _wait(self, kind: int) -> bool:
        """Until a message is there; False if there will be none."""
        start = self._now()
        estimate = self._estimates.get(kind)
        if estimate is None:
            estimate = self._estimates[kind] = DurationEstimate(4 * SPIN_SECONDS)
        is_there = estimate.usual_seconds <= self._spin_seconds and self._spin(
            start + self._spin_seconds
        )
        while not is_there:
            if not self._sleep(_FOR_MESSAGE, self.has_message):
                return self.has_message()
            is_there = self.has_message()
        estimate.note(self._now() - start)
        return True

    def _spin(self, deadline: float) -> bool:
        words, now = self._words, self._now
        written = _WRITTEN[1 - self._side]
        before = words[written]
        if before != words[_READ[1 - self._side]]:
            return True
        while now() < deadline:
            for _ in range(_LOOKS):
                if words[written] != before:
                    return True
        return False

    def _sleep_until_room(self, least: int, ends_for_message: bool) -> bool:
        """Until the other side has read `least` bytes, or perhaps before."""
        read = _READ[self._side]

        def is_over() -> bool:
            return bool(self._words[read] >= least) or (ends_for_message and self.has_message())

        return self._sleep(_FOR_ROOM, is_over)

    def _sleep(self, what: int, is_over: Callable[[], bool]) -> bool:
        """Until the bell rings, unless there is no reason to sleep; False when the other side is
        gone."""
        asleep = _ASLEEP[self._side]
        self._words[asleep] = what
        try:
            self._fence()
            return is_over() or bool(self._bell.recv(64))
        except ConnectionResetError:
            return False
        finally:
            self._words[asleep] = 0

    def _ring(self) -> bool:
        try:
            self._bell.send(b"!", socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True  # enough bells are waiting to be heard
        except OSError:
            return False
        return True


def create_memory() -> mmap.mmap:
    """The memory of two rings, shared with processes that are forked from now on."""
    return mmap.mmap(-1, _CONTROL + 2 * _RING)


def spin_seconds_for(processes: int) -> float:
    """How long each of so many processes may look before it sleeps, on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return SPIN_SECONDS if processes <= (cores or 1) else 0.0
