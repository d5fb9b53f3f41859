"""Ranks that agree by plain words do the sums that they are compared with."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from benchmarks.plain_words import PlainWords


@pytest.mark.parametrize(("size", "count"), [(2, 1000), (2, 200_000), (3, 1000), (3, 40_000)])
def test_each_rank_has_the_sum_and_knew_after_all_had_asked(size: int, count: int) -> None:
    words = torch.zeros(2 * size, dtype=torch.int64)
    buckets = torch.stack([torch.full((size, count), 1.0 + turn) for turn in range(2)])
    ranks = [PlainWords(rank, size, words, buckets) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        for turn in range(2):
            list(pool.map(lambda rank, turn=turn: rank.reduce(turn), ranks))
            results = buckets[turn] if ranks[0].is_sliced else [each.result for each in ranks]
            for result in results:
                assert torch.equal(result, torch.full((count,), size * (1.0 + turn)))
    assert [len(each.known) for each in ranks] == [2] * size
    last_asked = [max(times) for times in zip(*(each.asked for each in ranks), strict=True)]
    for each in ranks:
        assert all(known >= asked for known, asked in zip(each.known, last_asked, strict=True))
