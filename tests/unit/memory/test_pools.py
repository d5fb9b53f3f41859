"""What a pool holds is counted, and given back when it lies idle; a buffer is its holder's until
nothing refers to it, and then warm for the next one."""

from __future__ import annotations

import ctypes
import gc
import os

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lockstitch.memory import pools
from lockstitch.memory.pools import (
    IDLE_SECONDS,
    LEAST_BUFFER_BYTES,
    PoolStatistics,
    WarmBuffers,
    default_capacity,
)
from lockstitch.testing import ManualClock

MB = 1 << 20


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pool(clock: ManualClock) -> WarmBuffers:
    return WarmBuffers(8 * MB, clock)


def test_capacity_is_a_part_of_the_memory_there_is(monkeypatch, tmp_path) -> None:
    assert 0 < default_capacity() <= 1 << 30
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(pools, "_MEMORY_LIMIT", limit)
    limit.write_text("max\n")
    unlimited = default_capacity()
    limit.write_text(f"{160 * MB}\n")
    assert default_capacity() == 10 * MB
    limit.unlink()
    assert default_capacity() == unlimited


def test_figures_tell_what_is_there_and_what_was_done(pool: WarmBuffers) -> None:
    first, second = pool.take(MB), pool.take(2 * MB)
    del first
    again = pool.take(MB)
    assert pool.take(16 * MB) is None
    assert pool.statistics() == PoolStatistics(8 * MB, 3 * MB, 2, 2, 2, 1, 1)
    assert repr(pool) == "<WarmBuffers · 2 blocks, 2 lent · 3,145,728 of 8,388,608 bytes>"
    del second, again
    assert pool.statistics().lent == 0


def test_idle_memory_is_given_back_and_then_nobody_looks_any_more(pool, clock) -> None:
    later: list[tuple[float, object]] = []
    pool.trim_by(lambda seconds, task: later.append((seconds, task)))
    assert later == []
    kept, spare = pool.take(MB), pool.take(MB)
    assert later == [(IDLE_SECONDS, pool.trim)]
    del spare
    assert pool.statistics().blocks == 2
    clock.advance(IDLE_SECONDS + 1)
    pool.trim()
    assert pool.statistics().blocks == 1
    assert len(later) == 2  # something is there still
    del kept
    pool.statistics()
    clock.advance(IDLE_SECONDS + 1)
    pool.trim()
    assert pool.statistics().bytes == 0
    assert len(later) == 2
    again = pool.take(MB)
    assert len(later) == 3
    del again


def test_what_is_in_use_now_and_then_stays(pool, clock) -> None:
    for _ in range(3):
        buffer = pool.take(MB)
        del buffer
        clock.advance(IDLE_SECONDS * 0.6)
        pool.trim()
    assert pool.statistics().made == 1


# ---------------------------------------------------------------- warm buffers


@pytest.fixture
def buffers() -> WarmBuffers:
    return WarmBuffers(64 << 20)


def test_memory_is_used_again_once_nothing_refers_to_it(buffers: WarmBuffers) -> None:
    memory = buffers.take(LEAST_BUFFER_BYTES)
    assert memory is not None
    address = ctypes.addressof(memory)
    tensor = torch.frombuffer(memory, dtype=torch.float32, count=100)
    part = tensor[3:5]
    del memory, tensor
    other = buffers.take(LEAST_BUFFER_BYTES)
    assert ctypes.addressof(other) != address
    del part
    assert ctypes.addressof(buffers.take(LEAST_BUFFER_BYTES)) == address


def test_small_memories_are_left_to_the_allocator(buffers: WarmBuffers) -> None:
    assert buffers.take(LEAST_BUFFER_BYTES - 1) is None
    assert buffers.statistics().refused == 0


def test_without_capacity_there_are_none() -> None:
    assert WarmBuffers(0).take(LEAST_BUFFER_BYTES) is None


def test_when_memory_cannot_be_had_nothing_is_booked(monkeypatch, buffers) -> None:
    def none_left(*args, **kwargs):
        raise RuntimeError("not enough memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", none_left)
        with pytest.raises(RuntimeError, match="not enough memory"):
            buffers.take(LEAST_BUFFER_BYTES)
    assert buffers.statistics().blocks == 0
    assert buffers.take(LEAST_BUFFER_BYTES) is not None


def test_room_is_made_for_what_is_needed_now() -> None:
    buffers = WarmBuffers(4 << 20)
    buffers.take(1 << 20)
    buffers.take(3 << 20)
    memory = buffers.take(7 << 19)
    assert memory is not None
    assert buffers.statistics().bytes == 7 << 19


def test_end_of_a_buffer_is_noted_where_its_finalizers_run_in_any_order(buffers) -> None:
    class Holder:
        def __init__(self, memory) -> None:
            self.memory = memory
            self.itself = self

        def __del__(self) -> None:
            seen.append(bytes(self.memory[:4]))

    seen: list[bytes] = []
    memory = buffers.take(LEAST_BUFFER_BYTES)
    memory[:4] = b"data"
    Holder(memory)
    del memory
    gc.collect()
    assert seen == [b"data"]
    assert buffers.statistics().lent == 0


def test_child_has_what_it_was_forked_with_and_its_parent_hears_nothing_of_it(buffers) -> None:
    memory = buffers.take(LEAST_BUFFER_BYTES)
    memory[:4] = b"both"
    pid = os.fork()
    if not pid:
        is_right = bytes(memory[:4]) == b"both"
        del memory
        again = buffers.take(LEAST_BUFFER_BYTES)
        again[:4] = b"mine"
        os._exit(0 if is_right and buffers.statistics().made == 1 else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert bytes(memory[:4]) == b"both"
    assert buffers.statistics().lent == 1


class Buffering(RuleBasedStateMachine):
    """Buffers are taken, looked at in part, and let go of in any order, as time goes by."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.pool = WarmBuffers(24 * MB, self.clock)
        self.marks = 0
        self.lent: dict[int, tuple[int, int]] = {}

    @rule(target=held, nbytes=st.integers(MB, 9 * MB))
    def take(self, nbytes: int):
        memory = self.pool.take(nbytes)
        if memory is None:
            return None
        begin = ctypes.addressof(memory)
        end = begin + ctypes.sizeof(memory)
        assert end - begin >= nbytes
        assert all(end <= other or last <= begin for other, last in self.lent.values())
        self.marks += 1
        mark = self.marks % 251
        memory[0], memory[nbytes - 1] = mark, mark
        self.lent[self.marks] = begin, end
        return self.marks, mark, nbytes, memory

    @rule(target=held, each=consumes(held))
    def view(self, each):
        if each is None or not isinstance(each[3], ctypes.Array):
            return each
        return (*each[:3], memoryview(each[3]).cast("B"))

    @rule(each=consumes(held))
    def let_go(self, each) -> None:
        if each is not None:
            number, mark, nbytes, memory = each
            first, last = bytes(memory[:1]), bytes(memory[nbytes - 1 : nbytes])
            assert first == last == bytes([mark])
            del self.lent[number]

    @rule(seconds=st.sampled_from([1, IDLE_SECONDS + 1]))
    def wait_and_trim(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.pool.trim()

    @invariant()
    def the_figures_are_right(self) -> None:
        now = self.pool.statistics()
        assert now.bytes <= now.capacity_bytes
        assert now.lent <= now.blocks <= now.made


TestBuffering = Buffering.TestCase
