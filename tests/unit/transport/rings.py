"""Both ends of a unix connection with rings, in this process."""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING, Any

from lockstitch.memory.doorbell import AWAKE
from lockstitch.memory.ring import SLEEPS
from lockstitch.memory.segments import SegmentPool
from lockstitch.transport.unix import UnixTransport
from tests.unit.transport.streams import receive_all, wait_for_connection

if TYPE_CHECKING:
    from collections.abc import Callable


class RingPair:
    """`near` sends, `far` receives."""

    def __init__(self) -> None:
        pool = SegmentPool(1 << 20)
        self._transports = [UnixTransport(pool), UnixTransport(pool)]
        self._listener = self._transports[1].listen()
        self.near: Any = self._transports[0].connect(self._listener.address, 1.0)
        self.near.is_own_process = False  # otherwise there would be none
        self.far: Any = wait_for_connection(self._listener)
        self.near.send([b"hello"])
        assert receive_all(self.far, 5) == b"hello"
        self.poll = select.poll()
        self.poll.register(self.far._socket, select.POLLIN)

    def close(self) -> None:
        for each in (self.near, self.far, self._listener, *self._transports):
            each.close()

    @property
    def looks(self) -> bool:
        """Whether the receiver says that it looks."""
        return bool(self.far.ring.words[SLEEPS] == AWAKE)

    def look(self) -> None:
        self.far.ring.words[SLEEPS] = AWAKE

    def look_away(self) -> bytes:
        """The receiver looks no more; what it finds at last."""
        return self.receive() if self.far.ring.look_away() else b""

    def receive(self, most: int = 1 << 16) -> bytes:
        """What is there, without waiting."""
        counts: list[int] = []
        view = memoryview(bytearray(most))
        with contextlib.suppress(BlockingIOError):
            self.far.receive_into(view, counts, 0)
        return bytes(view[: sum(counts)])

    @property
    def is_called(self) -> bool:
        """Whether the stream wakes a receiver that sleeps on it."""
        return bool(self.poll.poll(0))

    def before_the_next_put(self, action: Callable[[], object]) -> None:
        """Has `action` done after the sender has seen that somebody looks, and before it puts
        anything in."""
        writer = self.near._writer
        writer._data = _Hooked(writer, writer._data, action)


class _Hooked:
    def __init__(self, writer: Any, data: memoryview, action: Callable[[], object]) -> None:
        self._writer, self._memory, self._action = writer, data, action

    def __setitem__(self, place: slice, value: bytes) -> None:
        self._writer._data = self._memory
        self._action()
        self._memory[place] = value
