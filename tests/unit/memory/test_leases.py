"""The end of the last use is told, and told once; of segments' states, whether mapped or behind a
descriptor, both ends see the same bytes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from functools import partial
from queue import SimpleQueue

import pytest

from lockstitch.memory import leases, mapping
from lockstitch.memory.leases import (
    FREE,
    KEPT,
    LENT,
    TABLE_BYTES,
    FileTable,
    Lease,
    mapped_table,
    setter,
    window,
)


def test_a_lease_ends_with_the_last_reference_to_its_window():
    ended = []
    memory = ctypes.create_string_buffer(b"the bytes", 16)
    opened = window(ctypes.addressof(memory), 16, Lease(lambda: ended.append(1), memory))
    del memory
    part = memoryview(opened).cast("B")[:9]
    del opened
    assert bytes(part) == b"the bytes"
    assert ended == []
    del part
    assert ended == [1]


def test_a_cancelled_lease_tells_nobody():
    ended = []
    lease = Lease(lambda: ended.append(1))
    lease.cancel()
    del lease
    assert ended == []


def test_the_end_of_a_lease_runs_nothing_of_python_in_which_an_interrupt_could_be_lost():
    returned: SimpleQueue[int] = SimpleQueue()
    lease = Lease(partial(returned.put, 7))
    frames = []
    sys.setprofile(lambda frame, event, _: frames.append(frame) if event == "call" else None)
    try:
        del lease
    finally:
        sys.setprofile(None)
    assert frames == []
    assert returned.get_nowait() == 7


@contextlib.contextmanager
def shared_table():
    """Not a fixture, whose value would outlive the test's end."""
    memory, descriptor = mapping.create(TABLE_BYTES)
    try:
        yield mapped_table(memory), descriptor
    finally:
        os.close(descriptor)


def test_a_table_behind_a_descriptor_is_the_mapped_one():
    with shared_table() as (table, descriptor):
        other = FileTable(os.dup(descriptor))
        table[5] = LENT
        assert other[5] == LENT
        other[TABLE_BYTES - 1] = KEPT
        assert table[TABLE_BYTES - 1] == KEPT
        assert other[0] == FREE


def test_a_table_closes_its_descriptor():
    with shared_table() as (_, descriptor):
        before = len(os.listdir("/proc/self/fd"))
        table = FileTable(os.dup(descriptor))
        del table
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("is_ordered", [True, False])
def test_setter_sets_one_state(is_ordered, monkeypatch):
    monkeypatch.setattr(leases, "STORES_ARE_ORDERED", is_ordered)
    with shared_table() as (table, _):
        setter(table, 3, LENT)()
        assert list(table[:5]) == [0, 0, 0, LENT, 0]
