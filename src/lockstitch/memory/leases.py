"""How it is told that nobody uses lent memory any more.

A `Lease` goes with the memory, and its end calls something: where memory comes back to its own
process, what puts a note into a queue; where it belongs to another process, what sets the state of
a segment. The states are one byte for each segment, in memory that the two ends of a connection
share:

    FREE ─ NEW ─► LENT ─► FREE        the sender writes NEW and LENT, the receiver all others
            │       └──► KEPT ─► GONE  (a child may use it)
            ├──► SHARED ─► GONE        (others have the same; or KEPT ─► SPENT)
            └──► COPIED                (the receiver cannot map it and has read it instead)

Where the receiver cannot map the table itself, it reads and writes the same bytes as a file.
"""

from __future__ import annotations

import ctypes
import operator
import os
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from lockstitch.fences import STORES_ARE_ORDERED, Fence
from lockstitch.memory.blocks import MOST_BLOCKS
from lockstitch.memory.sizes import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.memory.mapping import Copy, Mapping

FREE: Final = 0
NEW: Final = 1  # lent for the first time: its descriptor is still to be received
LENT: Final = 2
KEPT: Final = 3  # like LENT, and will never be FREE
GONE: Final = 4  # was KEPT
COPIED: Final = 5  # the receiver has a copy, and never had the segment: it is of no use to lend
SHARED: Final = 6  # others have the same memory: GONE in the end
SPENT: Final = 7  # was SHARED, then KEPT

NOTHING: Final[Callable[[], object]] = int
"""Can be called, does nothing, and has no frame."""
TABLE_BYTES: Final = PAGE_BYTES
assert MOST_BLOCKS <= TABLE_BYTES


class Lease:
    """Goes with `memory`, and calls `end` when nothing refers to it any more.

    Nothing of this is written in Python, since an interrupt that strikes a finalizer is dropped:
    `__del__` is a property, hence looked up and called without a frame, and so should `end` be.
    """

    __slots__ = ("__weakref__", "end", "memory")

    def __init__(self, end: Callable[[], object], memory: Any = None) -> None:
        self.end = end
        self.memory = memory

    def cancel(self) -> None:
        """Its end shall do nothing."""
        self.end = NOTHING

    __del__ = property(operator.attrgetter("end"))


class SegmentLease(Lease):
    """Goes with a window; its end says that the sender may use the segment again, once it is taken.

    Whoever has received a message sets `end` to `give_back` in the same breath in which the message
    becomes his; until then the end does nothing.
    """

    __slots__ = ("give_back",)

    def __init__(self, give_back: Callable[[], object], memory: Mapping | Copy) -> None:
        self.end = NOTHING
        self.give_back = give_back
        self.memory = memory

    def pin(self) -> None:
        """A device is about to copy from it."""
        self.memory.pin()


class Loan(Protocol):
    """Memory that the peer will see without a copy, once it is filled and `number` sent."""

    number: int
    address: int

    def cancel(self) -> None:
        """Gives the memory back, of which the peer will not hear."""
        ...

    def pin(self) -> None:
        """Prepares the memory for a device, which is about to fill it."""
        ...


def window(address: int, size: int, lease: Lease) -> ctypes.Array[Any]:
    """An object whose memory is there, for as long as the lease that goes with it."""
    array = (ctypes.c_char * size).from_address(address)
    array.lease = lease  # type: ignore[attr-defined]
    return array


def mapped_table(memory: Mapping) -> Any:
    """The memory as a mutable sequence of states."""
    table = (ctypes.c_ubyte * memory.size).from_address(memory.address)
    table.mapping = memory  # type: ignore[attr-defined]
    return table


class FileTable:
    """A table behind a descriptor, for a receiver that cannot map it. The descriptor becomes its
    own, and is closed with it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False

    def __getitem__(self, number: int) -> int:
        return os.pread(self._descriptor, 1, number)[0]

    def __setitem__(self, number: int, state: int) -> None:
        os.pwrite(self._descriptor, bytes((state,)), number)


def setter(table: Any, number: int, state: int) -> Callable[[], object]:
    """What sets a state of a mapped table: called by a finalizer, anywhere and at any time."""
    if STORES_ARE_ORDERED:
        return partial(table.__setitem__, number, state)
    return partial(_write_behind_fences, table, number, state)


def _write_behind_fences(table: Any, number: int, state: int) -> None:
    """What was written and read in a segment must be over before the sender sees its state. On x86
    that is so; elsewhere it takes a fence, of its own, as this may come in the midst of another.
    """
    Fence()()
    table[number] = state
