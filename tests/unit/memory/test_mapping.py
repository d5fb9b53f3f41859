"""Shared memory: two mappings are one memory, and nothing of it outlives its users."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

import pytest

from lockstitch.devices import pinned
from lockstitch.memory import mapping
from lockstitch.memory.mapping import Mapping, create, create_file, punch

SIZE = 1 << 16


@contextlib.contextmanager
def shared():
    """Not a fixture, whose value would outlive the test's end."""
    memory, descriptor = create(SIZE)
    try:
        yield memory, descriptor
    finally:
        os.close(descriptor)


def listed() -> str:
    return "\n".join(
        line for line in Path("/proc/self/maps").read_text().splitlines() if mapping.NAME in line
    )


def test_what_one_writes_the_other_reads():
    with shared() as (memory, descriptor):
        other = Mapping(descriptor, SIZE)
        assert other.address != memory.address
        ctypes.memmove(memory.address + 100, b"hello", 5)
        assert ctypes.string_at(other.address + 100, 5) == b"hello"
        assert repr(other) == f"<Mapping of 65,536 bytes at {other.address:#x}>"


def test_it_is_unmapped_with_its_last_reference():
    memory, descriptor = create(SIZE)
    os.close(descriptor)
    assert f"{memory.address:x}-" in listed()
    address = memory.address
    del memory
    assert f"{address:x}-" not in listed()


def test_less_memory_than_promised_is_refused():
    with shared() as (_, descriptor), pytest.raises(OSError, match="less than 131,072 bytes"):
        Mapping(descriptor, 2 * SIZE)


def test_nobody_can_take_the_memory_away():
    with shared() as (_, descriptor), pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)


def test_what_is_given_up_is_empty_for_all():
    with shared() as (memory, descriptor):
        other = Mapping(descriptor, SIZE)
        ctypes.memset(memory.address, 7, SIZE)
        before = os.fstat(descriptor).st_blocks
        memory.give_up()
        assert os.fstat(descriptor).st_blocks < before
        assert ctypes.string_at(other.address, 3) == bytes(3)


def test_part_of_a_file_is_punched_out_and_the_rest_stays():
    descriptor = create_file()
    try:
        os.posix_fallocate(descriptor, 0, SIZE)
        memory = Mapping(descriptor, SIZE)
        memory.tensor().fill_(7)
        punch(descriptor, SIZE // 2, SIZE // 2)
        assert os.fstat(descriptor).st_size == SIZE
        assert os.fstat(descriptor).st_blocks * 512 == SIZE // 2
        assert memory.tensor()[SIZE // 2 - 1 : SIZE // 2 + 1].tolist() == [7, 0]
    finally:
        os.close(descriptor)


def test_what_is_made_private_is_written_to_by_nobody_else():
    with shared() as (memory, descriptor):
        other = Mapping(descriptor, SIZE)
        memory.tensor().fill_(7)
        other.make_private(descriptor)
        other.tensor()[:2] = 8
        assert other.tensor()[:3].tolist() == [8, 8, 7]
        assert memory.tensor()[:3].tolist() == [7, 7, 7]


def test_more_memory_than_there_is_is_refused_at_once(monkeypatch, tmp_path):
    with pytest.raises(OSError, match="no memory for"):
        create(1 << 62)
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(mapping, "_MEMORY", meminfo)
    meminfo.write_text("MemTotal:  900 kB\nMemAvailable:   127 kB\n")
    with pytest.raises(OSError, match="no memory for 65,536 bytes"):
        create(SIZE)
    meminfo.write_text("MemAvailable: 128 kB\n")
    memory, descriptor = create(SIZE)
    os.close(descriptor)
    assert memory.size == SIZE


def test_what_cannot_be_mapped_leaves_no_descriptor(monkeypatch):
    def no_room(*args):
        raise OSError(12, "no room")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no room"):
        create(SIZE)
    assert len(os.listdir("/proc/self/fd")) == before


def test_copy_is_what_lay_there_and_memory_of_its_own():
    with shared() as (memory, descriptor):
        ctypes.memmove(memory.address, b"before", 6)
        copy = mapping.Copy(descriptor, SIZE)
        ctypes.memmove(memory.address, b"after!", 6)
        assert ctypes.string_at(copy.address, 6) == b"before"
        assert copy.size == SIZE
        with pytest.raises(OSError, match="less than"):
            mapping.Copy(descriptor, SIZE + 1)


def test_copy_for_which_there_is_no_memory_is_an_error():
    with shared() as (_, descriptor), pytest.raises(OSError, match="there is no memory"):
        mapping.Copy(descriptor, 1 << 60)


def test_memory_that_devices_copy_from_again_is_pinned_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(pinned, "pin", lambda owner, address, size: sizes.append(size))
    memory, descriptor = mapping.create(4096)
    copy = mapping.Copy(descriptor, 4096)
    os.close(descriptor)
    memory.pin()
    assert sizes == []  # a single copy is as quick without
    memory.pin()
    memory.pin()
    assert sizes == [4096]
    copy.pin()
    copy.pin()
    assert sizes == [4096]
