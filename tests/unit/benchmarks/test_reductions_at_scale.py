from __future__ import annotations

import pytest

from benchmarks.reductions_at_scale import Network, negotiate


def test_a_ring_moves_almost_twice_the_data() -> None:
    network = Network(alpha_seconds=1.0, bytes_per_second=100.0)
    assert network.ring_seconds(1, 400) == 0
    assert network.ring_seconds(2, 400) == pytest.approx(2 + 4)
    assert network.ring_seconds(4, 400) == pytest.approx(6 + 6)


@pytest.mark.parametrize("ranks", [2, 96])
def test_a_steady_bucket_takes_few_bytes_whatever_the_number_of_ranks(ranks: int) -> None:
    told = negotiate(ranks, buckets=3)
    assert told.bytes_from_each / 3 == 9
    assert told.bytes_to_each / 3 == 9
