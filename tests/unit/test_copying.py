"""Bytes are moved whole, and none beside them."""

from __future__ import annotations

import ctypes

import pytest

from lockstitch.copying import MEMORY, move

PIECE = 1 << 19


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_all_bytes_are_moved_and_none_beside_them(size: int) -> None:
    source = (ctypes.c_ubyte * (size + 1))()
    source[:size] = [number % 251 + 1 for number in range(size)]
    target = (ctypes.c_ubyte * (size + 2))()
    move(ctypes.addressof(target) + 1, ctypes.addressof(source), size)
    assert bytes(target) == b"\0" + bytes(source)[:size] + b"\0"


def test_memory_is_read_and_written_by_address() -> None:
    place = (ctypes.c_ubyte * 5)(*b"abcde")
    address = ctypes.addressof(place)
    assert bytes(MEMORY[address : address + 5]) == b"abcde"
    MEMORY[address + 1 : address + 3] = b"XY"
    assert bytes(place) == b"aXYde"
    assert not bytes(MEMORY[0:0]), "where a tensor without elements lies"
