"""Pools of memory that is kept warm: a ledger under a lock, figures, and an end for what lies idle.

A `BufferPool` is of this process's own memory; what it lends comes back by a note that a finalizer
may leave. (`segments` has the pool of what is shared with others.)

Memory that is spare for `IDLE_SECONDS` is given back to the system. Nobody's thread waits for that:
whoever runs the worker hands in a function that calls something later, and it is only asked while
there is memory to look at.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.memory.blocks import Block, Ledger
from lockstitch.memory.leases import Lease, window

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Hashable

IDLE_SECONDS: Final = 30.0
LEAST_BUFFER_BYTES: Final = 1 << 20
OURS: Final = "ours"
"""The one owner of the blocks of a `BufferPool`."""
_MOST_BYTES: Final = 1 << 30
_PART_OF_MEMORY: Final = 16
_MEMORY_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """`bytes` in `blocks` are there now, `lent` of the blocks are in use. So far, blocks were
    `made` new, `reused` warm, and `refused`: whoever asked had to do without."""

    capacity_bytes: int
    bytes: int
    blocks: int
    lent: int
    made: int
    reused: int
    refused: int


def default_capacity() -> int:
    """1 GiB, or a sixteenth of the memory that this process may use where that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # there may be no such limit
        memory = min(memory, int(_MEMORY_LIMIT.read_text()))
    return min(_MOST_BYTES, memory // _PART_OF_MEMORY)


class Pool:
    """Lends blocks of memory; subclasses know what memory it is and how it comes back."""

    def __init__(self, ledger: Ledger, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        # Reentrant, because a destructor may close an owner while this very thread is inside.
        self._lock = threading.RLock()
        self._ledger = ledger
        self._made = self._reused = self._refused = 0
        self._call_later: Callable[[float, Callable[[], None]], None] | None = None
        self._is_watched = False

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"<{type(self).__name__} · {now.blocks} blocks, {now.lent} lent · "
            f"{now.bytes:,} of {now.capacity_bytes:,} bytes>"
        )

    def statistics(self) -> PoolStatistics:
        """What there is now, and what was done so far."""
        with self._lock:
            for owner in self._ledger.owners():
                self._collect(owner, self._clock.now())
            blocks = self._ledger.blocks()
            return PoolStatistics(
                self._ledger.capacity_bytes,
                self._ledger.bytes,
                len(blocks),
                sum(block.is_lent for block in blocks),
                self._made,
                self._reused,
                self._refused,
            )

    def now(self) -> float:
        """The time of the pool's clock, in seconds."""
        return self._clock.now()

    def trim_by(self, call_later: Callable[[float, Callable[[], None]], None]) -> None:
        """Has idle memory given back: `call_later(seconds, task)` runs a task later."""
        with self._lock:
            self._call_later = call_later
            self._watch()

    def trim(self) -> None:
        """Gives back what was not used in the last `IDLE_SECONDS`."""
        now = self._clock.now()
        with self._lock:
            for owner in self._ledger.owners():
                self._collect(owner, now)
            idle = self._ledger.drop_idle(now - IDLE_SECONDS)
            self._is_watched = False
            self._watch()
        for block in idle:
            self._free(block)

    def _watch(self) -> None:
        if self._call_later is not None and not self._is_watched and self._ledger.bytes:
            self._is_watched = True
            self._call_later(IDLE_SECONDS, self.trim)

    # ------------------------------------------------------------ for subclasses

    def _collect(self, owner: Hashable, now: float) -> None:
        """Notes in the ledger which of an owner's blocks have come back. Under the lock."""
        raise NotImplementedError

    def _free(self, block: Block) -> None:
        """Gives back the memory of a block that was spare and is no more."""
        raise NotImplementedError

    def _reuse(self, owner: Hashable, nbytes: int) -> Block | None:
        """A warm block, if there is one. Under the lock."""
        now = self._clock.now()
        block = self._ledger.reuse(owner, nbytes, now)
        if block is None:
            self._collect(owner, now)
            block = self._ledger.reuse(owner, nbytes, now)
        if block is not None:
            self._reused += 1
        return block

    def _make(self, owner: Hashable, nbytes: int) -> tuple[Block | None, list[Block]]:
        """A new block, and those that had to go for it. Under the lock."""
        now = self._clock.now()
        ledger = self._ledger
        if ledger.bytes + nbytes > ledger.capacity_bytes:
            for each in ledger.owners():
                self._collect(each, now)
        block, gone = ledger.make(owner, nbytes, now)
        if block is None:
            self._refused += 1
        else:
            self._made += 1
            self._watch()
        return block, gone

    def _unmake(self, block: Block) -> None:
        """The memory of a new block could not be had."""
        with self._lock:
            self._made -= 1
            self._refused += 1
            if block in self._ledger.lent(block.owner):  # its owner may have gone meanwhile
                self._ledger.drop(block)


class BufferPool(Pool):
    """Lends memory of this process, which `_allocate` makes."""

    def __init__(self, ledger: Ledger, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(ledger, clock)
        # Finalizers run anywhere, under any lock: they only put something here.
        self._returned: SimpleQueue[Block] = SimpleQueue()

    def lend(self, nbytes: int) -> Block | None:
        """A block of at least `nbytes`, with its memory; None where there is none or it would be no
        gain."""
        with self._lock:
            block = self._reuse(OURS, nbytes)
            gone: list[Block] = []
            if block is None:
                block, gone = self._make(OURS, nbytes)
        for each in gone:
            self._free(each)
        if block is not None and block.memory is None:
            try:
                block.memory = self._allocate(block.size)
            except BaseException:
                self._unmake(block)
                raise
        return block

    def lease(self, block: Block) -> Lease:
        """What gives a block back when nothing refers to it."""
        return Lease(partial(self._returned.put, block))

    def _allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def _collect(self, owner: Hashable, now: float) -> None:
        del owner
        while not self._returned.empty():
            self._ledger.give_back(self._returned.get(), now)

    def _free(self, block: Block) -> None:
        block.memory = None


class WarmBuffers(BufferPool):
    """Warm buffers for what arrives in streams: memory that a received tensor lies in returns here
    when the tensor is gone, and takes up the next one without any page having to be found first.

    For small buffers the allocator does as much by itself; it gives large ones back to the system.
    """

    def __init__(self, capacity_bytes: int, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(Ledger(capacity_bytes), clock)

    def take(self, nbytes: int) -> ctypes.Array[Any] | None:
        """Memory for at least `nbytes`, lent until nothing refers to it; None where there is none
        or it would be no gain."""
        if nbytes < LEAST_BUFFER_BYTES:
            return None
        block = self.lend(nbytes)
        if block is None:
            return None
        return window(block.memory.data_ptr(), block.size, self.lease(block))
