"""A buffer is its holder's until nothing refers to it, and then warm for the next one."""

from __future__ import annotations

import ctypes

import pytest
import torch

from lockstitch.memory.warm import LEAST_BYTES, WarmBuffers


@pytest.fixture
def buffers() -> WarmBuffers:
    return WarmBuffers(64 << 20)


def test_memory_is_used_again_once_nothing_refers_to_it(buffers: WarmBuffers) -> None:
    memory = buffers.take(LEAST_BYTES)
    assert memory is not None
    address = ctypes.addressof(memory)
    tensor = torch.frombuffer(memory, dtype=torch.float32, count=100)
    part = tensor[3:5]
    del memory, tensor
    other = buffers.take(LEAST_BYTES)
    assert ctypes.addressof(other) != address
    del part
    assert ctypes.addressof(buffers.take(LEAST_BYTES)) == address


def test_small_memories_are_left_to_the_allocator(buffers: WarmBuffers) -> None:
    assert buffers.take(LEAST_BYTES - 1) is None
    assert buffers.statistics().refused == 0


def test_without_capacity_there_are_none() -> None:
    assert WarmBuffers(0).take(LEAST_BYTES) is None


def test_when_memory_cannot_be_had_nothing_is_booked(monkeypatch, buffers) -> None:
    def none_left(*args, **kwargs):
        raise RuntimeError("not enough memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", none_left)
        with pytest.raises(RuntimeError, match="not enough memory"):
            buffers.take(LEAST_BYTES)
    assert buffers.statistics().blocks == 0
    assert buffers.take(LEAST_BYTES) is not None


def test_room_is_made_for_what_is_needed_now() -> None:
    buffers = WarmBuffers(4 << 20)
    buffers.take(1 << 20)
    buffers.take(3 << 20)
    memory = buffers.take(7 << 19)
    assert memory is not None
    assert buffers.statistics().bytes == 7 << 19
