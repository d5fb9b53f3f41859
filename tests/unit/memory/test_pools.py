"""What a pool holds is counted, and given back when it lies idle."""

from __future__ import annotations

import pytest

from lockstitch.memory import pools
from lockstitch.memory.pools import IDLE_SECONDS, PoolStatistics, default_capacity
from lockstitch.memory.warm import WarmBuffers
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
