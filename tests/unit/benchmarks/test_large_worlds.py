"""What one process has to do does not grow with the ranks, beside the real tables."""

from __future__ import annotations

import pytest

from benchmarks.large_worlds import FAN_IN, launcher, negotiation, start, way_down


@pytest.mark.parametrize(("size", "levels"), [(64, 1), (512, 2), (4096, 3), (100_000, 4)])
def test_way_down_goes_through_all_levels(size: int, levels: int) -> None:
    places = way_down(size, [rank // 8 for rank in range(size)], FAN_IN)
    assert len(places) == levels
    assert all(len(place.branches) <= FAN_IN + 8 for place in places)


def test_step_of_a_large_world_is_run_by_its_real_tables() -> None:
    busy, latency, levels = negotiation(4096, 8, buckets=2, call=0.0)
    assert 0 < busy < 60
    assert latency > 2 * levels * 30e-6


def test_start_of_a_rank_takes_few_steps_and_bytes() -> None:
    steps, count, _ = start(200, 8)
    assert steps <= 12
    assert count <= 20_000


def test_launcher_tells_all() -> None:
    assert launcher(64, 8) > 0
