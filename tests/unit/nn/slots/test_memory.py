"""A block is the reader's until the last tensor on it is gone, and then the owner's again."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from lockstitch.memory.mapping import create_file
from lockstitch.nn.slots.memory import OwnedMemory, ReadMemory


@pytest.fixture
def two_ends():
    descriptor = create_file()
    ends = [OwnedMemory(descriptor), ReadMemory(descriptor)]
    yield ends
    ends.clear()
    os.close(descriptor)


def fill(block, value):
    block.kept(0, torch.float32, (4,)).fill_(value)


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


def test_number_of_a_block_that_was_given_up_may_be_used_again(two_ends):
    owner, reader = two_ends
    use(owner, reader, *[4 << 20] * 4)
    for _ in range(100):
        use(owner, reader, 16)
    for value in range(5):
        block = owner.allocate(1 << 20)
        fill(block, value)
        assert read(reader, block).tolist() == [value] * 4


def test_memory_that_cannot_be_had_is_not_booked(two_ends, monkeypatch):
    owner, _ = two_ends

    def no_room(*args):
        raise OSError(28, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(OSError, match="no room"):
            owner.allocate(16)
    assert owner.reserved_bytes == 0
    assert owner.allocate(16).name.number == 0


class Exchanging(RuleBasedStateMachine):
    """Blocks are filled, read, held, let go of and taken back in any order."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.descriptor = create_file()
        self.owner = OwnedMemory(self.descriptor)
        self.reader = ReadMemory(self.descriptor)
        self.count = 0

    @rule(target=held, size=st.sampled_from([16, 5000, 70_000, 3 << 20]))
    def send(self, size: int):
        self.count += 1
        block = self.owner.allocate(size)
        assert len(block.bytes) >= size
        block.bytes[0] = block.bytes[size - 1] = self.count % 251
        return torch.frombuffer(self.reader.open(block.name), dtype=torch.uint8, count=size), (
            self.count % 251
        )

    @rule(each=consumes(held))
    def let_go(self, each) -> None:
        tensor, mark = each
        assert tensor[0] == tensor[-1] == mark

    @rule()
    def answer(self) -> None:
        self.owner.take_back(self.reader.returned())

    @rule(steps=st.integers(1, 100))
    def work(self, steps: int) -> None:
        for _ in range(steps):
            use(self.owner, self.reader, 16)

    def teardown(self) -> None:
        os.close(self.descriptor)


TestExchanging = Exchanging.TestCase
# In which order blocks are lent is the ledger's affair, and tested there at length.
TestExchanging.settings = settings(max_examples=settings.default.max_examples // 2)
