"""Whole messages between two processes through memory that both see, and waiting for them.

Each direction is a `ring`, which one side writes and the other reads; a message is there when the
ring's TAIL has moved. So a message costs no call of the system, as long as its reader is awake.

Falling asleep and being woken takes 50 µs and more on a virtual machine, several times what a small
piece of work needs for its step. So a reader looks again and again for a while first, if waits of
this kind have been short of late. It does not yield the CPU between two looks: a system may take
that for a wish to share it, and run both processes on one. Then it sleeps on a socket, by the
protocol of `doorbell`. The end of the socket is the death of the other side.

A side has one word that says whether it sleeps, that of the ring which it reads; and it sleeps for
one of two reasons: until there is a message, or until the other side has read so much that its next
message fits into the ring.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from typing import TYPE_CHECKING, Final

from lockstitch.fences import STORES_ARE_ORDERED, Fence
from lockstitch.memory.doorbell import ASLEEP
from lockstitch.memory.ring import HEAD, SLEEPS, TAIL, Ring
from lockstitch.memory.waiting import DurationEstimate

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST: Final = 60_000
"""How long a message may be, in bytes."""
SPIN_SECONDS: Final = 1e-3
_RING_BYTES: Final = 1 << 17
_LENGTH_BYTES: Final = 8
"""What precedes a message; messages begin at multiples of this."""
_LOOKS: Final = 40  # between two looks at the clock
_FOR_MESSAGE: Final = ASLEEP
_FOR_ROOM: Final = ASLEEP + 1


class Mailbox:
    """One side's view of the two rings in `memory`. `side` is 0 or 1: it writes the ring of that
    number and reads the other. `wakeups` is its end of a pair of sockets of whole packets.
    `spin_seconds`: how long one looks before sleeping; 0 where there are fewer cores than
    processes."""

    def __init__(
        self,
        memory: mmap.mmap,
        side: int,
        wakeups: socket.socket,
        spin_seconds: float = SPIN_SECONDS,
    ) -> None:
        view = memoryview(memory)
        rings = Ring(view[:_RING_BYTES]), Ring(view[_RING_BYTES : 2 * _RING_BYTES])
        self._out, self._in = rings[side], rings[1 - side]
        self._side = side
        self._wakeups = wakeups
        self._spin_seconds = spin_seconds
        self._fence = Fence()
        self._estimates: dict[int, DurationEstimate] = {}

    def __repr__(self) -> str:
        words = self._in.words
        return f"<Mailbox of side {self._side} · {words[TAIL] - words[HEAD]} bytes to read>"

    def has_message(self) -> bool:
        """Whether `receive` would return at once."""
        words = self._in.words
        return bool(words[TAIL] != words[HEAD])

    def send(self, message: bytes, drain: Callable[[], None] | None = None) -> bool:
        """Writes a message of at most `LARGEST` bytes; waits until there is room for it. False if
        the other side is gone.

        `drain` takes in what has come. One of the two sides needs it: if both waited for room
        without reading, it would be for ever.
        """
        out, words = self._out, self._out.words
        tail = words[TAIL]
        end = tail + _size_of(len(message))
        while end - words[HEAD] > out.capacity:
            if drain is not None and self.has_message():
                drain()
            elif not self._sleep_until_room(end - out.capacity, drain is not None):
                return False
        out.store(tail, len(message).to_bytes(_LENGTH_BYTES, "little") + message)
        if not STORES_ARE_ORDERED:
            self._fence()
        words[TAIL] = end
        return not out.doorbell.reason(SLEEPS) or self._wake()

    def receive(self, kind: int = 0) -> bytes | None:
        """The next message; None when the other side is gone. `kind`: what is waited for; waits of
        one kind are taken to be alike."""
        ring, words = self._in, self._in.words
        head = words[HEAD]
        if words[TAIL] == head and not self._wait(kind):
            return None
        if not STORES_ARE_ORDERED:
            self._fence()
        length = int.from_bytes(ring.load(head, _LENGTH_BYTES), "little")
        message = bytes(ring.load(head + _LENGTH_BYTES, length))
        if not STORES_ARE_ORDERED:
            self._fence()
        words[HEAD] = head + _size_of(length)
        if self._out.doorbell.reason(SLEEPS) == _FOR_ROOM:
            self._wake()
        return message

    def _wait(self, kind: int) -> bool:
        """Waits until a message is there; returns False if there will be none."""
        start = time.perf_counter()
        estimate = self._estimates.get(kind)
        if estimate is None:
            estimate = self._estimates[kind] = DurationEstimate(4 * SPIN_SECONDS)
        is_there = estimate.usual_seconds <= self._spin_seconds and self._spin(
            start + self._spin_seconds
        )
        while not is_there:
            if not self._sleep(self.has_message, _FOR_MESSAGE):
                return self.has_message()
            is_there = self.has_message()
        estimate.note(time.perf_counter() - start)
        return True

    def _spin(self, deadline: float) -> bool:
        words, now = self._in.words, time.perf_counter
        before = words[TAIL]
        if before != words[HEAD]:
            return True
        while now() < deadline:
            for _ in range(_LOOKS):
                if words[TAIL] != before:
                    return True
        return False

    def _sleep_until_room(self, least: int, ends_for_message: bool) -> bool:
        """Sleeps until the other side has read `least` bytes, or perhaps wakes before."""
        words = self._out.words

        def is_over() -> bool:
            return bool(words[HEAD] >= least) or (ends_for_message and self.has_message())

        return self._sleep(is_over, _FOR_ROOM)

    def _sleep(self, has_come: Callable[[], bool], reason: int) -> bool:
        """Sleeps until the other side wakes this one, unless there is no reason to; returns False
        when the other side is gone."""
        try:
            packet = self._in.doorbell.sleep_unless(SLEEPS, has_come, self._receive_wakeup, reason)
        except ConnectionResetError:
            return False
        return packet != b""

    def _receive_wakeup(self) -> bytes:
        return self._wakeups.recv(64)

    def _wake(self) -> bool:
        try:
            self._wakeups.send(b"!", socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True  # enough packets are waiting to wake it
        except OSError:
            return False
        return True


def _size_of(length: int) -> int:
    """How many bytes of a ring a message of that length takes."""
    return _LENGTH_BYTES + (length + _LENGTH_BYTES - 1 & -_LENGTH_BYTES)


def create_memory() -> mmap.mmap:
    """The memory of two rings, shared with processes that are forked from now on."""
    return mmap.mmap(-1, 2 * _RING_BYTES)


def spin_seconds_for(processes: int) -> float:
    """How long each of so many processes may look before it sleeps, on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return SPIN_SECONDS if processes <= (cores or 1) else 0.0
