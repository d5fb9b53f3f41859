"""Segments: memory that two processes of one host share, so that a large message is copied once.

    sender                        table, one byte per segment           receiver
    lend ─ copy into the segment ─────── LENT ──► frame ───────► window on it, used in place
    lend it again  ◄───────────────────── FREE ◄───────────────── last tensor in it is gone

The sender makes segments and keeps them warm (`SegmentPool`). Each belongs to one direction of one
connection; its descriptor is handed over once. Until the receiver says FREE, a segment is the
receiver's alone: whatever it writes there nobody else will see. It says so by a byte in a table
that both share, in the finalizer of the last tensor, which needs no lock, no message and no thread.

When a connection ends its segments are forgotten by the sender; what the receiver still uses stays
until it has done with it. Segments have no name: the last process that has one takes it along.

*Forks.* A child of the receiver inherits the tensors in a segment, and nobody hears when it has
done with them. So what is in use at a fork becomes KEPT, the sender never lends it again, and GONE
at the end, when the number may get another segment.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import platform
import struct
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.transport import mapping
from lockstitch.transport.blocks import MOST_BLOCKS, PAGE_BYTES, Block, Ledger
from lockstitch.transport.forks import abandon_in_child, tell_before_fork
from lockstitch.transport.handover import descriptors_in
from lockstitch.transport.mapping import Mapping
from lockstitch.transport.pools import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from lockstitch.transport.handover import Handover, Note

LEAST_BYTES: Final = 16 * 1024
"""Less than this goes by the stream, which is quicker then."""

FREE: Final = 0
NEW: Final = 1  # lent for the first time: its descriptor is still to be received
LENT: Final = 2
KEPT: Final = 3  # like LENT, and will never be FREE
GONE: Final = 4  # was KEPT

_STORES_ARE_ORDERED: Final = platform.machine() in ("x86_64", "AMD64", "i686")
_NOTE: Final = struct.Struct("<HQ")  # number, size
_TABLE: Final = 0xFFFF  # stands for the table's number
_TABLE_BYTES: Final = PAGE_BYTES
assert MOST_BLOCKS <= _TABLE_BYTES
# Can be called, does nothing, and has no frame.
_NOTHING: Final[Callable[[], object]] = int
# After a failure, the system is not asked for memory again for so long.
_PAUSE_SECONDS: Final = 1.0


class Loan:
    """A segment to be filled: write to `address`, then send `number` to the peer, or `cancel`."""

    __slots__ = ("_block", "_memory", "_pool", "address", "number")

    def __init__(self, pool: SegmentPool, block: Block, memory: Mapping) -> None:
        self._pool = pool
        self._block = block
        self._memory = memory  # stays mapped until it is filled, even if the connection ends
        self.number = block.number
        self.address = memory.address

    def cancel(self) -> None:
        """The peer will not hear of it."""
        self._pool.take_back(self._block)


class SegmentPool(Pool):
    """The segments that one worker lends, to all its peers together."""

    def __init__(self, capacity_bytes: int, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(capacity_bytes, clock)
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
                if self._clock.now() < self._paused_until:
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
            owner.table = bytearray(_TABLE_BYTES)
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
            elif state in (KEPT, GONE):
                ledger.retire(block)
                block.memory = None
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
        self._pool = pool
        self._handover = handover
        self._opening = threading.Lock()
        abandon_in_child(self)

    def abandon(self) -> None:
        """A forked child has none of the memory, and lends nothing."""
        self.is_closed = True
        self.table = bytearray(_TABLE_BYTES)

    def lend(self, nbytes: int) -> Loan | None:
        """See `SegmentPool.lend`."""
        return self._pool.lend(self, nbytes)

    def close(self) -> None:
        """Forgets all; harmless when repeated."""
        self._pool.forget(self)

    def open(self) -> bool:
        """Sees to it that both sides have the table; False if that is not possible."""
        if not self.table and not self.is_closed:
            with self._opening:
                if not self.table:
                    try:
                        self.table = _bytes_of(self.hand_over(_TABLE, _TABLE_BYTES))
                    except OSError:
                        self._pool.forget(self)
        return not self.is_closed

    def come_back(self, nbytes: int) -> Block | None:
        """A block for `nbytes` that came back since anybody looked; its memory is the warmest."""
        for block in self.recent:
            if (
                self.table[block.number] == FREE
                and block.is_lent
                and Ledger.fits(block, nbytes)
                and block.memory is not None
            ):
                return block
        return None

    def hand_over(self, number: int, size: int) -> Mapping:
        """Makes memory and hands it to the peer as `number`. Raises `OSError`."""
        memory, descriptor = mapping.create(size)
        try:
            self._handover.send(_NOTE.pack(number, size), descriptor)
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


class Lease:
    """Goes with a window; its end says that the sender may use the segment again, once it is taken.

    Nothing of its end is written in Python, since an interrupt that strikes a finalizer is dropped:
    `__del__` is a property, hence looked up and called without a frame, and so is what it finds.
    Whoever has received a message sets `end` to `give_back` in the same breath in which the message
    becomes his; until then the end does nothing.
    """

    __slots__ = ("__weakref__", "_mapping", "end", "give_back")

    def __init__(self, give_back: Callable[[], object], memory: Mapping) -> None:
        self.end: Callable[[], object] = _NOTHING
        self.give_back = give_back
        self._mapping = memory

    __del__ = property(operator.attrgetter("end"))


class ReceivedSegments:
    """The receiving end of one connection: what the peer has lent us."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._notes: list[Note] = []
        self._mapped: dict[int, Mapping] = {}
        self._leases: dict[int, weakref.ref[Lease]] = {}
        """The latest of each segment: there is one at a time."""
        self._table: Any = b""
        abandon_in_child(self)
        tell_before_fork(self)

    def window(self, number: int) -> tuple[ctypes.Array[Any], Lease]:
        """The segment that the peer has lent as `number`: an object whose memory is there, and the
        lease that ends with it. Raises `ConnectionError` if there is none."""
        if not self._table or self._table[number] == NEW:
            self._receive()
        memory = self._mapped.get(number)
        if memory is None or self._table[number] not in (NEW, LENT, KEPT):
            raise ConnectionError(f"the peer names a segment, {number}, that it has not lent")
        if self._table[number] == NEW:
            self._table[number] = LENT
        lease = Lease(self._release(number, FREE), memory)
        self._leases[number] = weakref.ref(lease)
        array = (ctypes.c_char * memory.size).from_address(memory.address)
        array.lease = lease  # type: ignore[attr-defined]
        return array, lease

    def _release(self, number: int, state: int) -> Callable[[], object]:
        """What says that nothing refers to that window any more: called by a finalizer, anywhere
        and at any time."""
        if _STORES_ARE_ORDERED:
            return partial(self._table.__setitem__, number, state)
        return partial(_write_behind_fences, self._table, number, state)

    def close(self) -> None:
        """The connection has ended: the peer has forgotten what it lent. Leases keep their memory
        and tell nobody of their end; harmless when repeated."""
        self._table = bytearray(_TABLE_BYTES)
        self._mapped = {}

    def before_fork(self) -> None:
        """What is in use now, a child will have as well."""
        for number, ref in list(self._leases.items()):
            lease = ref()
            if lease is not None and self._table[number] == LENT:
                self._table[number] = KEPT
                is_taken = lease.end is lease.give_back
                lease.give_back = self._release(number, GONE)
                if is_taken:
                    lease.end = lease.give_back

    def abandon(self) -> None:
        """In a forked child: what it lets go of is its own affair."""
        self._table = bytearray(_TABLE_BYTES)
        for ref in list(self._leases.values()):
            lease = ref()
            if lease is not None:
                lease.end = lease.give_back = _NOTHING

    def _receive(self) -> None:
        """Maps all that has been handed over. An interrupted one is finished by the next."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._handover.receive(self._notes)
                self._open_notes()
        self._open_notes()

    def _open_notes(self) -> None:
        notes = self._notes
        while notes:
            data, ancillary, _, _ = notes[0]
            if not data:
                raise ConnectionResetError("the peer is gone, and what it has lent with it")
            descriptors = descriptors_in(ancillary)
            if len(data) != _NOTE.size or len(descriptors) != 1:
                raise ConnectionError(
                    "a shared memory segment did not arrive: this process may have too many open "
                    "files (ulimit -n)"
                )
            number, size = _NOTE.unpack(data)
            try:
                memory = Mapping(descriptors[0], size)
            except OSError as error:
                raise ConnectionError(f"a shared memory segment cannot be used: {error}") from error
            if number == _TABLE:
                table = _bytes_of(memory)
                self._table = table
            else:
                self._mapped[number] = memory
            del notes[0]  # from storing the memory to here, nothing is called
            os.close(descriptors[0])


def _write_behind_fences(table: Any, number: int, state: int) -> None:
    """What was written and read in a segment must be over before the sender sees its state. On x86
    that is so; elsewhere it takes two locks, since things may move into one, but not through two.
    """
    with threading.Lock():
        pass
    with threading.Lock():
        pass
    table[number] = state


def _bytes_of(memory: Mapping) -> Any:
    """The memory as a mutable sequence of numbers from 0 to 255."""
    table = (ctypes.c_ubyte * memory.size).from_address(memory.address)
    table.mapping = memory  # type: ignore[attr-defined]
    return table
