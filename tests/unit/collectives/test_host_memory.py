"""Blocks for tensors of a device: found again by size, given back in several ways."""

from __future__ import annotations

import torch

from lockstitch.collectives.host_memory import HostMemory
from lockstitch.memory.sizes import PAGE_BYTES


def allocated() -> tuple[HostMemory, list[int]]:
    sizes: list[int] = []

    def allocate(size: int) -> torch.Tensor:
        sizes.append(size)
        return torch.empty(size, dtype=torch.uint8)

    return HostMemory(allocate), sizes


class Reading:
    """An event: a device reads until it `is_over`."""

    def __init__(self) -> None:
        self.is_over = False
        self.was_awaited = False

    def query(self) -> bool:
        return self.is_over

    def synchronize(self) -> None:
        self.was_awaited = self.is_over = True


def test_block_begins_with_a_page_and_consists_of_pages() -> None:
    memory, _ = allocated()
    for size in (1, 70_000, 1_000_001):
        block = memory.take(size).memory
        assert block.numel() >= size
        assert block.data_ptr() % PAGE_BYTES == block.numel() % PAGE_BYTES == 0


def test_block_that_was_given_back_is_taken_again() -> None:
    memory, sizes = allocated()
    block = memory.take(1000)
    memory.give_back(block)
    assert memory.take(2000) is block
    assert memory.take(2000) is not block
    assert len(sizes) == 2


def test_block_whose_lease_ends_is_taken_again() -> None:
    memory, sizes = allocated()
    memory.lease(memory.take(1000))
    memory.take(1000)
    assert len(sizes) == 1


def test_block_that_a_device_still_reads_is_awaited_where_none_is_free() -> None:
    memory, sizes = allocated()
    first, second = memory.take(1000), memory.take(1000)
    readings = Reading(), Reading()
    memory.give_back(first, [readings[0]])
    memory.give_back(second, [readings[1]])
    readings[1].is_over = True
    assert memory.take(1000) is second
    assert not readings[0].was_awaited
    assert memory.take(1000) is first
    assert readings[0].was_awaited
    assert len(sizes) == 2


def test_forgotten_block_is_not_taken_again() -> None:
    memory, sizes = allocated()
    memory.forget(memory.take(1000))
    memory.take(1000)
    assert len(sizes) == 2


def test_nothing_is_kept_once_it_is_closed() -> None:
    memory, sizes = allocated()
    late, later, last = (memory.take(1000) for _ in range(3))
    memory.give_back(memory.take(1000))
    memory.close()
    memory.give_back(late)
    memory.forget(later)
    memory.lease(last)
    memory.take(1000)
    assert len(sizes) == 5
