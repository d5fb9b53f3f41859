"""A block is the reader's until the last tensor on it is gone, and then the owner's again."""

from __future__ import annotations

import os

import pytest
import torch

from lockstitch.nn.slots.memory import OwnedMemory, ReadMemory, create_file


@pytest.fixture
def two_ends():
    descriptor = create_file()
    ends = [OwnedMemory(descriptor), ReadMemory(descriptor)]
    yield ends
    ends.clear()
    os.close(descriptor)


def fill(block, value):
    block.tensor(torch.float32, (4,), (1,), 0).fill_(value)


def read(reader, block):
    return torch.frombuffer(reader.open(block.name), dtype=torch.float32, count=4)


def test_a_block_made_in_inference_mode_is_filled_in_every_mode(two_ends):
    owner, reader = two_ends
    with torch.inference_mode():
        block = owner.allocate(16)
        fill(block, 1.0)
    fill(block, 2.0)
    assert read(reader, block).tolist() == [2] * 4


def test_the_reader_sees_what_the_owner_wrote(two_ends):
    owner, reader = two_ends
    block = owner.allocate(16)
    fill(block, 7)
    assert read(reader, block).tolist() == [7] * 4


def test_a_block_comes_back_when_its_last_tensor_is_gone(two_ends):
    owner, reader = two_ends
    block = owner.allocate(16)
    tensor = read(reader, block)
    view = tensor[2:]
    del tensor
    assert reader.returned() == []
    del view
    assert reader.returned() == [block.name.number]
    assert reader.returned() == []


def test_a_block_that_is_held_is_not_written_over(two_ends):
    owner, reader = two_ends
    first = owner.allocate(16)
    fill(first, 1)
    held = read(reader, first)
    second = owner.allocate(16)
    fill(second, 2)
    assert held.tolist() == [1] * 4
    del held
    owner.take_back(reader.returned())
    assert owner.allocate(16) is first


def test_memory_grows_with_what_is_in_use_only(two_ends):
    owner, reader = two_ends
    for _ in range(20):
        block = owner.allocate(5000)
        read(reader, block)
        owner.take_back(reader.returned())
    assert owner.reserved_bytes == 8192


def use(owner, reader, *sizes):
    blocks = [owner.allocate(size) for size in sizes]
    for block in blocks:
        read(reader, block)
    owner.take_back(reader.returned())
    return blocks


def test_blocks_that_lie_idle_for_long_are_given_up(two_ends):
    owner, reader = two_ends
    use(owner, reader, *[4 << 20] * 4)
    for _ in range(100):
        use(owner, reader, 16)
    assert owner.reserved_bytes <= (4 << 20) + 4096
    descriptor = owner._descriptor
    assert os.fstat(descriptor).st_blocks * 512 < 8 << 20


def test_what_each_step_needs_is_kept_from_one_to_the_next(two_ends):
    owner, reader = two_ends
    first = [use(owner, reader, 16 << 20)[0], use(owner, reader, 3 << 20)[0]]
    for _ in range(100):
        assert use(owner, reader, 16 << 20) == first[:1]
        assert use(owner, reader, 3 << 20) == first[1:]
    assert owner.reserved_bytes == 19 << 20


def test_blocks_of_very_different_sizes_are_not_taken_for_each_other(two_ends):
    owner, reader = two_ends
    large = owner.allocate(1 << 20)
    read(reader, large)
    owner.take_back(reader.returned())
    assert owner.allocate(16) is not large
