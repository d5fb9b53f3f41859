"""Segments that a peer has lent: the receiving end of `memory.segments`.

A message's tensors lie in a segment as long as any of them lives. A lease goes with the memory and
tells the sender of its end, by a byte in the table that both share.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from lockstitch.forks import abandon_in_child, tell_before_fork
from lockstitch.memory.handover import descriptors_in
from lockstitch.memory.leases import (
    COPIED,
    FREE,
    GONE,
    KEPT,
    LENT,
    NEW,
    NOTHING,
    SHARED,
    SPENT,
    TABLE_BYTES,
    FileTable,
    SegmentLease,
    mapped_table,
    setter,
    window,
)
from lockstitch.memory.mapping import Copy, Mapping
from lockstitch.memory.segments import FOR_SEVERAL, NOTE, TABLE

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

    from lockstitch.memory.handover import Handover, Note, Reserve


class ReceivedSegments:
    """The receiving end of one connection: what the peer has lent us."""

    def __init__(self, handover: Handover, reserve: Reserve) -> None:
        self._handover = handover
        self._reserve = reserve
        self._held = [reserve]
        """The reserve, until it is let go."""
        self._notes: list[Note] = []
        self._taken: list[bytes] = []
        self._mapped: dict[int, Mapping | Copy] = {}
        self._own: set[int] = set()
        """Those that are mapped for this process alone."""
        self._leases: dict[int, weakref.ref[SegmentLease]] = {}
        """The latest of each segment: there is one at a time."""
        self._table: Any = b""
        reserve.hold()
        abandon_in_child(self)
        tell_before_fork(self)

    def window(self, number: int) -> tuple[ctypes.Array[Any], SegmentLease]:
        """The segment that the peer has lent as `number`: an object whose memory is there, and the
        lease that ends with it. Raises `ConnectionError` if there is none."""
        if not self._table or self._table[number] == NEW:
            self._receive()
        memory = self._mapped.get(number)
        if memory is None or self._table[number] not in (NEW, LENT, SHARED, KEPT, COPIED):
            raise ConnectionError(f"the peer names a segment, {number}, that it has not lent")
        if isinstance(memory, Copy):
            self._table[number] = COPIED
            lease = SegmentLease(partial(self._mapped.pop, number, None), memory)
        elif number in self._own:
            if self._table[number] == NEW:
                self._table[number] = SHARED
            end = SPENT if self._table[number] == KEPT else GONE
            lease = SegmentLease(self._forget(number, end), memory)
            self._leases[number] = weakref.ref(lease)
        else:
            if self._table[number] == NEW:
                self._table[number] = LENT
            lease = SegmentLease(setter(self._table, number, FREE), memory)
            self._leases[number] = weakref.ref(lease)
        return window(memory.address, memory.size, lease), lease

    def _forget(self, number: int, state: int) -> Callable[[], object]:
        """What gives up a mapping, and then sets its state: without a frame, see `Lease`."""
        forget: Callable[[], object] = partial(self._mapped.pop, number, None)
        steps = (forget, setter(self._table, number, state))
        return partial(deque, map(partial.__call__, steps), 0)  # type: ignore[arg-type]

    def close(self) -> None:
        """The connection has ended: the peer has forgotten what it lent. Leases keep their memory
        and tell nobody of their end; harmless when repeated."""
        self._table = bytearray(TABLE_BYTES)
        self._mapped = {}
        with contextlib.suppress(IndexError):  # it was let go before
            self._held.pop().let_go()

    def before_fork(self) -> None:
        """What is in use now, a child will have as well."""
        for number, ref in self._leases.copy().items():
            lease = ref()
            state = self._table[number]
            if lease is not None and state in (LENT, SHARED):
                self._table[number] = KEPT
                is_taken = lease.end is lease.give_back
                lease.give_back = (
                    setter(self._table, number, GONE)
                    if state == LENT
                    else self._forget(number, SPENT)
                )
                if is_taken:
                    lease.end = lease.give_back

    def abandon(self) -> None:
        """Called in a forked child: what that lets go of is its own affair."""
        self._table = bytearray(TABLE_BYTES)
        for ref in list(self._leases.values()):
            lease = ref()
            if lease is not None:
                lease.end = lease.give_back = NOTHING

    def _receive(self) -> None:
        """Maps all that has been handed over. An interrupted one is finished by the next."""
        with contextlib.suppress(BlockingIOError):
            while True:
                if not self._notes:
                    self._handover.look(self._notes)
                if self._is_cut_short():
                    with self._reserve.spent():
                        del self._notes[:]
                        self._handover.look(self._notes)
                        self._open_note()
                else:
                    self._open_note()

    def _is_cut_short(self) -> bool:
        """Whether what is handed over has been seen without its descriptor."""
        data, ancillary, _, _ = self._notes[0]
        return len(data) == NOTE.size and not descriptors_in(ancillary)

    def _open_note(self) -> None:
        data, ancillary, _, _ = self._notes[0]
        if not data:
            raise ConnectionResetError("the peer is gone, and what it has lent with it")
        descriptors = descriptors_in(ancillary)
        if len(data) != NOTE.size or len(descriptors) != 1:
            raise ConnectionError(
                "a shared memory segment did not arrive: this process may have too many open "
                "files (ulimit -n)"
            )
        if not self._taken:
            try:
                self._open_memory(descriptors[0], *NOTE.unpack(data))
            except OSError as error:
                del self._notes[0]
                os.close(descriptors[0])
                raise ConnectionError(f"a shared memory segment cannot be used: {error}") from error
            self._handover.take(self._taken)
        del self._notes[0], self._taken[0]  # nothing is called between the two
        os.close(descriptors[0])

    def _open_memory(self, descriptor: int, number: int, size: int) -> None:
        if number == TABLE:
            self._table = _table(descriptor, size)
            return
        is_own = bool(number & FOR_SEVERAL)
        number &= ~FOR_SEVERAL
        memory = self._memory(descriptor, size)
        if is_own and not isinstance(memory, Copy):
            memory.make_private(descriptor)
            self._own.add(number)
        else:
            self._own.discard(number)
        self._mapped[number] = memory

    def _memory(self, descriptor: int, size: int) -> Mapping | Copy:
        if not isinstance(self._table, FileTable):
            with contextlib.suppress(OSError):
                return Mapping(descriptor, size)
        return Copy(descriptor, size)


def _table(descriptor: int, size: int) -> Any:
    try:
        return mapped_table(Mapping(descriptor, size))
    except OSError:
        return FileTable(os.dup(descriptor))
