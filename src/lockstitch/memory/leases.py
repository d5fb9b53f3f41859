"""The states of segments: one byte each, in memory that the two ends of a connection share.

    FREE ─ NEW ─► LENT ─► FREE        the sender writes NEW and LENT, the receiver all others
            │       └──► KEPT ─► GONE  (a child may use it)
            └──► COPIED                (the receiver cannot map it and has read it instead)

Where the receiver cannot map the table itself, it reads and writes the same bytes as a file.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockstitch.fences import STORES_ARE_ORDERED
from lockstitch.memory.blocks import MOST_BLOCKS, PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.memory.mapping import Mapping

FREE: Final = 0
NEW: Final = 1  # lent for the first time: its descriptor is still to be received
LENT: Final = 2
KEPT: Final = 3  # like LENT, and will never be FREE
GONE: Final = 4  # was KEPT
COPIED: Final = 5  # the receiver has a copy, and never had the segment: it is of no use to lend

TABLE_BYTES: Final = PAGE_BYTES
assert MOST_BLOCKS <= TABLE_BYTES


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
    that is so; elsewhere it takes two locks, since things may move into one, but not through two.
    """
    with threading.Lock():
        pass
    with threading.Lock():
        pass
    table[number] = state
