"""Blocks for tensors of a device: found again by size, given back in several ways."""

from __future__ import annotations

import torch

from lockstitch.collectives.host_memory import HostMemory

PAGE = 4096


def allocated() -> tuple[HostMemory, list[int]]:
    sizes: list[int] = []

    def allocate(size: int) -> torch.Tensor:
        sizes.append(size)
        return torch.empty(size, dtype=torch.uint8)

    return HostMemory(allocate), sizes


def test_block_begins_with_a_page_and_consists_of_pages() -> None:
    memory, _ = allocated()
    for size in (1, 70_000, 1_000_001):
        block = memory.take(size)
        assert block.numel() >= size
        assert block.data_ptr() % PAGE == block.numel() % PAGE == 0


def test_block_that_was_given_back_is_taken_again() -> None:
    memory, sizes = allocated()
    block = memory.take(1000)
    address = block.data_ptr()
    memory.give_back(block)
    assert memory.take(2000).data_ptr() == address
    assert memory.take(2000).data_ptr() != address
    assert len(sizes) == 2


def test_block_that_a_finalizer_drops_is_taken_again() -> None:
    memory, sizes = allocated()
    memory.drop(memory.take(1000))
    memory.take(1000)
    assert len(sizes) == 1


def test_memory_of_other_sizes_is_left_alone() -> None:
    memory, sizes = allocated()
    memory.give_back(memory.take(1 << 20))
    memory.take(1 << 22)
    assert len(sizes) == 2


def test_nothing_is_kept_once_it_is_closed() -> None:
    memory, sizes = allocated()
    late = memory.take(1000)
    memory.give_back(memory.take(1000))
    memory.close()
    memory.give_back(late)
    memory.take(1000)
    assert len(sizes) == 3
