"""Two ends of a connection that lend each other segments, both in this process."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

from lockstitch.memory import mapping
from lockstitch.memory.segments import LEAST_BYTES, SegmentPool
from lockstitch.testing import ManualClock
from lockstitch.transport.unix import UnixTransport
from tests.unit.transport.streams import receive_all, wait_for_connection

MB = 1 << 20


def mapped_bytes(name: str = mapping.NAME) -> int:
    """How much memory of segments, or of that name, this process has mapped."""
    gc.collect()
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"/memfd:{name} " in line:
            low, high = line.split()[0].split("-")
            total += int(high, 16) - int(low, 16)
    return total


class Pair:
    """Two ends of a connection between two workers, each with a pool of its own."""

    def __init__(self, capacity: int | None = 64 * MB, far_capacity: int | None = 64 * MB) -> None:
        self.clock = ManualClock()
        self.pool = SegmentPool(capacity, self.clock) if capacity else None
        self.far_pool = SegmentPool(far_capacity, self.clock) if far_capacity else None
        self._transports = [UnixTransport(self.pool), UnixTransport(self.far_pool)]
        self._listener = self._transports[1].listen()
        self.near = self._transports[0].connect(self._listener.address, 1.0)
        self.far = wait_for_connection(self._listener)
        self.near.send([b"hello"])
        assert receive_all(self.far, 5) == b"hello"

    def close(self) -> None:
        for each in (self.near, self.far, self._listener, *self._transports):
            each.close()

    def lend(self, data: bytes, nbytes: int = LEAST_BYTES) -> int | None:
        """The number of a segment that holds `data`."""
        loan = self.near.lend(nbytes)
        if loan is None:
            return None
        ctypes.memmove(loan.address, data, len(data))
        return loan.number

    def take(self, number: int):
        """What the receiver of such a message has of it."""
        window, lease = self.far.window(number)
        lease.end = lease.give_back
        return window
