"""Segments: memory that two processes of one host share, so that a large message is copied once.
The sending end, and what both ends keep to; the receiving one is `memory.received_segments`.

    sender                        table, one byte per segment           receiver
    lend ─ copy into the segment ─────── LENT ──► frame ───────► window on it, used in place
    lend it again  ◄───────────────────── FREE ◄───────────────── last tensor in it is gone

The sender makes segments and keeps them warm (`SegmentPool`). Each belongs to one direction of one
connection; its descriptor is handed over once. Until the receiver says FREE, a segment is the
receiver's alone: whatever it writes there nobody else will see. It says so by a byte in a table
that both share, in the finalizer of the last tensor, which needs no lock, no message and no thread.

A receiver that cannot map a segment (too many open files or mappings, too little address space)
reads it into memory of its own instead and says COPIED: nothing is lost, the sender never lends
that segment again, and leaves it at the stream for a while.

When a connection ends its segments are forgotten by the sender; what the receiver still uses stays
until it has done with it. Segments have no name: the last process that has one takes it along.

*Forks.* A child of the receiver inherits the tensors in a segment, and nobody hears when it has
done with them. So what is in use at a fork becomes KEPT, the sender never lends it again, and GONE
at the end, when the number may get another segment.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING, Any, Final, cast

from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.forks import abandon_in_child
from lockstitch.memory import mapping
from lockstitch.memory.blocks import Block, Ledger
from lockstitch.memory.handover import Reserve
from lockstitch.memory.leases import (
    COPIED,
    FREE,
    GONE,
    KEPT,
    LENT,
    NEW,
    TABLE_BYTES,
    mapped_table,
)
from lockstitch.memory.pools import Pool
from lockstitch.memory.sizes import fits

if TYPE_CHECKING:
    from collections.abc import Hashable

    from lockstitch.memory.handover import Handover
    from lockstitch.memory.mapping import Mapping

LEAST_BYTES: Final = 16 * 1024
"""Less than this goes by the stream, which is quicker then."""

NOTE: Final = struct.Struct("<HQ")
"""What is said of a segment that is handed over: its number and its size."""

TABLE: Final = 0xFFFF
"""The number under which the table itself is handed over."""

# After a failure, the system is not asked for memory again for so long; nor is a peer that could
# not map what it was lent, and each time twice as long, up to 64 times.
_PAUSE_SECONDS: Final = 1.0
_MOST_DOUBLINGS: Final = 6


class Loan:
    """A segment to be filled: write to `address`, then send `number` to the peer, or `cancel`."""

    __slots__ = ("_block", "_memory", "_pool", "address", "number")

    def __init__(self, pool: SegmentPool, block: Block, memory: Mapping) -> None:
        self._pool = pool
        self._block = block
        self._memory = memory  # stays mapped until it is filled, even if the connection ends
        self.number = block.number
        self.address = memory.address

    def pin(self) -> None:
        """A device is about to fill it."""
        self._memory.pin()

    def cancel(self) -> None:
        """The peer will not hear of it."""
        self._pool.take_back(self._block)


class SegmentPool(Pool):
    """The segments that one worker lends, to all its peers together."""

    def __init__(self, capacity_bytes: int, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(Ledger(capacity_bytes), clock)
        self.reserve = Reserve()
        self._paused_until = float("-inf")

    def lend(self, owner: LentSegments, nbytes: int) -> Loan | None:
        """A segment with room for `nbytes`; None where there is none or it would be no gain."""
        if not owner.open():
            return None
        gone: list[Block] = []
        with self._lock:
            if owner.is_closed:
                return None
            block = owner.come_back(nbytes)
            if block is not None:  # the short way, without asking the ledger
                self._ledger.lend_again(block)
                self._reused += 1
                owner.table[block.number] = LENT
                return Loan(self, block, block.memory)
            block = self._reuse(owner, nbytes)
            if block is None:
                if self._clock.now() < max(self._paused_until, owner.paused_until):
                    self._refused += 1
                    return None
                block, gone = self._make(owner, nbytes)
            if block is not None:
                owner.mark_lent(block)
                owner.recent = [block, *[each for each in owner.recent if each is not block][:2]]
                memory: Mapping | None = block.memory
        for each in gone:
            self._free(each)
        if block is None:
            return None
        if memory is None:
            memory = self._hand_over(owner, block)
        return None if memory is None else Loan(self, block, memory)

    def _hand_over(self, owner: LentSegments, block: Block) -> Mapping | None:
        try:
            memory = block.memory = owner.hand_over(block.number, block.size)
        except OSError:  # no memory, no descriptors, a peer that reads none: the stream will do
            self._paused_until = self._clock.now() + _PAUSE_SECONDS
            self._unmake(block)
            return None
        except BaseException:
            self._unmake(block)
            raise
        return memory

    def take_back(self, block: Block) -> None:
        """A block was not used after all."""
        with self._lock:
            owner = cast("LentSegments", block.owner)
            if not owner.is_closed:
                owner.mark_free(block)
                self._ledger.give_back(block, self._clock.now())

    def forget(self, owner: LentSegments) -> None:
        """The connection of `owner` has ended."""
        with self._lock:
            owner.is_closed = True
            owner.table = bytearray(TABLE_BYTES)
            gone = self._ledger.drop_owner(owner)
        for block in gone:
            block.memory = None

    def _collect(self, owner: Hashable, now: float) -> None:
        table = cast("LentSegments", owner).table
        ledger = self._ledger
        for block in ledger.lent(owner):
            state = table[block.number]
            if state == FREE:
                ledger.give_back(block, now)
            elif state in (KEPT, GONE, COPIED):
                ledger.retire(block)
                block.memory = None
                if state == COPIED:  # its number has had its day, too
                    cast("LentSegments", owner).pause(now)
        for number in ledger.retired(owner):
            if table[number] == GONE:
                ledger.clear(owner, number)

    def _free(self, block: Block) -> None:
        # The peer may still map it. It does not use it, so the memory can go before the mapping.
        block.memory.give_up()
        block.memory = None


class LentSegments:
    """The sending end of one connection: what it has lent to its peer."""

    def __init__(self, pool: SegmentPool, handover: Handover) -> None:
        self.is_closed = False
        self.table: Any = b""
        self.recent: list[Block] = []
        """The blocks that were looked for last, and are likely to be what is looked for next."""
        self.paused_until = float("-inf")
        self._pauses = 0
        self._pool = pool
        self._handover = handover
        self._opening = threading.Lock()
        abandon_in_child(self)

    def abandon(self) -> None:
        """A forked child has none of the memory, and lends nothing."""
        self.is_closed = True
        self.table = bytearray(TABLE_BYTES)

    def lend(self, nbytes: int) -> Loan | None:
        """See `SegmentPool.lend`."""
        return self._pool.lend(self, nbytes)

    def pause(self, now: float) -> None:
        """A segment could not be made for the peer, or not be mapped by it: it gets no more of them
        for a while."""
        doublings = min(self._pauses, _MOST_DOUBLINGS)
        self._pauses += 1
        self.paused_until = now + _PAUSE_SECONDS * (1 << doublings)

    def close(self) -> None:
        """Forgets all; harmless when repeated."""
        self._pool.forget(self)

    def open(self) -> bool:
        """Sees to it that both sides have the table; False if that is not possible."""
        if not self.table and not self.is_closed and self._pool.now() >= self.paused_until:
            with self._opening:
                if not self.table:
                    try:
                        self.table = mapped_table(self.hand_over(TABLE, TABLE_BYTES))
                    except OSError:  # as with any other segment
                        self.pause(self._pool.now())
        return bool(self.table) and not self.is_closed

    def come_back(self, nbytes: int) -> Block | None:
        """A block for `nbytes` that came back since anybody looked; its memory is the warmest."""
        for block in self.recent:
            if (
                self.table[block.number] == FREE
                and block.is_lent
                and fits(block.size, nbytes)
                and block.memory is not None
            ):
                return block
        return None

    def hand_over(self, number: int, size: int) -> Mapping:
        """Makes memory and hands it to the peer as `number`. Raises `OSError`."""
        memory, descriptor = mapping.create(size)
        try:
            self._handover.send(NOTE.pack(number, size), descriptor)
        finally:
            os.close(descriptor)
        return memory

    def mark_lent(self, block: Block) -> None:
        if block.memory is None:
            self.table[block.number] = NEW
        elif self.table[block.number] != NEW:  # it was, and the peer has never heard of it
            self.table[block.number] = LENT

    def mark_free(self, block: Block) -> None:
        if self.table[block.number] != NEW:
            self.table[block.number] = FREE
