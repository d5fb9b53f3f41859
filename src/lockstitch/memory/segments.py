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

*Copies for several.* Memory that was filled for several peers (`memory.host_copies`) is handed over
to each under a number of its connection, where it is SHARED until it is GONE. When that is so on
all of them it is filled again. After a fork it is KEPT, and SPENT in the end: a child may have it.

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
from lockstitch.memory.host_copies import HostCopy
from lockstitch.memory.leases import (
    COPIED,
    FREE,
    GONE,
    KEPT,
    LENT,
    NEW,
    SPENT,
    TABLE_BYTES,
    mapped_table,
)
from lockstitch.memory.pools import Pool
from lockstitch.memory.sizes import fits

if TYPE_CHECKING:
    from collections.abc import Hashable

    from lockstitch.memory.handover import Handover
    from lockstitch.memory.host_copies import Filled
    from lockstitch.memory.mapping import Mapping

LEAST_BYTES: Final = 16 * 1024
"""Less than this goes by the stream, which is quicker then."""

NOTE: Final = struct.Struct("<HQ")
"""What is said of a segment that is handed over: its number and its size."""

TABLE: Final = 0xFFFF
"""The number under which the table itself is handed over."""

COPIES: Final = "copies"
"""The owner of the blocks that are filled for several peers."""

FOR_SEVERAL: Final = 0x8000
"""Added to the number of memory that others may have, too; a receiver maps it for itself alone."""

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


class FilledLoan:
    """Memory that was filled for several: send `number` to this peer, or `cancel`."""

    __slots__ = ("_copy", "_owner", "_pool", "address", "number")

    def __init__(self, pool: SegmentPool, owner: LentSegments, copy: HostCopy, number: int) -> None:
        self._pool = pool
        self._owner = owner
        self._copy = copy
        self.number = number
        self.address = copy.address

    def pin(self) -> None:
        """Nothing is copied into it any more."""

    def cancel(self) -> None:
        """The peer will not hear of it."""
        self._pool.cancel_copy(self._owner, self._copy, self.number)


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

    def make_copy(self, nbytes: int) -> HostCopy | None:
        """Memory to be filled for several; None where there is none or it would be no gain."""
        gone: list[Block] = []
        with self._lock:
            block = self._reuse(COPIES, nbytes)
            if block is None and self._clock.now() >= self._paused_until:
                block, gone = self._make(COPIES, nbytes)
        for each in gone:
            self._free(each)
        if block is None:
            return None
        if block.memory is None:
            try:
                block.memory = HostCopy(*mapping.create(block.size))
            except BaseException as error:
                self._unmake(block)
                if not isinstance(error, OSError):
                    raise
                self._paused_until = self._clock.now() + _PAUSE_SECONDS
                return None
        copy: HostCopy = block.memory
        copy.is_open = True
        return copy

    def lend_copy(self, owner: LentSegments, filled: Filled) -> FilledLoan | None:
        """Hands over memory that is filled; None where that cannot be."""
        copy = filled(self.make_copy) if owner.open() else None
        if copy is None:
            return None
        with self._lock:
            number = None if owner.is_closed else self._ledger.reserve(owner)
            if number is None:
                return None
            copy.users.add((owner, number))
            owner.table[number] = NEW
        loan = FilledLoan(self, owner, copy, number)
        try:
            owner.pass_on(number, copy)
        except OSError:  # as with any other segment
            loan.cancel()
            return None
        return loan

    def cancel_copy(self, owner: LentSegments, copy: HostCopy, number: int) -> None:
        """The peer will not hear of it."""
        with self._lock:
            copy.users.discard((owner, number))
            self._ledger.release(owner, number)

    def _collect_copies(self, now: float) -> None:
        for block in self._ledger.lent(COPIES):
            copy: HostCopy | None = block.memory
            if copy is None:
                continue
            for user in list(copy.users):
                self._look_at_user(copy, *user)
            if copy.users or copy.is_open:
                continue
            if copy.is_spent:
                self._ledger.drop(block)
                block.memory = None
            else:
                self._ledger.give_back(block, now)

    def _look_at_user(self, copy: HostCopy, owner: Hashable, number: int) -> None:
        state = cast("LentSegments", owner).table[number]
        if state in (KEPT, SPENT):
            copy.is_spent = True
        if state in (GONE, SPENT):
            self._ledger.release(owner, number)
        if state in (GONE, SPENT, COPIED):
            copy.users.discard((owner, number))

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
            self._forget_user(owner)
            owner.table = bytearray(TABLE_BYTES)
            gone = self._ledger.drop_owner(owner)
            if self._ledger.owners() == [COPIES]:  # there is nobody to fill them for
                gone += self._ledger.drop_owner(COPIES)
        for block in gone:
            block.memory = None

    def _forget_user(self, owner: LentSegments) -> None:
        """What the peer has of copies it has for ever, as far as anybody knows."""
        for block in self._ledger.lent(COPIES):
            copy: HostCopy | None = block.memory
            for user, number in list(copy.users) if copy is not None else ():
                if copy is not None and user is owner:
                    copy.users.discard((owner, number))
                    copy.is_spent |= owner.table[number] not in (GONE, COPIED)

    def _collect(self, owner: Hashable, now: float) -> None:
        if owner == COPIES:
            self._collect_copies(now)
            return
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

    def pass_on(self, number: int, copy: HostCopy) -> None:
        """Hands filled memory to the peer as `number`. Raises `OSError`."""
        self._handover.send(NOTE.pack(number | FOR_SEVERAL, copy.size), copy.descriptor)

    def lend_copy(self, filled: Filled) -> FilledLoan | None:
        """See `SegmentPool.lend_copy`."""
        return self._pool.lend_copy(self, filled)

    def mark_lent(self, block: Block) -> None:
        if block.memory is None:
            self.table[block.number] = NEW
        elif self.table[block.number] != NEW:  # it was, and the peer has never heard of it
            self.table[block.number] = LENT

    def mark_free(self, block: Block) -> None:
        if self.table[block.number] != NEW:
            self.table[block.number] = FREE
