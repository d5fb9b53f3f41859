"""The states of segments: whether mapped or behind a descriptor, both ends see the same bytes."""

from __future__ import annotations

import contextlib
import gc
import os

import pytest

from lockstitch.memory import leases, mapping
from lockstitch.memory.leases import (
    FREE,
    KEPT,
    LENT,
    TABLE_BYTES,
    FileTable,
    mapped_table,
    setter,
)


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
