"""A sequence of costs cut into contiguous parts of which the most expensive is as cheap as can be.

Torchgpipe's idea of balancing by measured costs, with the exact solution: the cuts are found by
dynamic programming, in O(parts · items²).
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def partition(costs: Sequence[float], parts: int) -> list[range]:
    """The items of each part, every part with one at least. Of equally good cuts the ones with more
    even parts: those before the last cut are as cheap as can be, too.

    Raises `ValueError` for fewer items than parts.
    """
    if not 1 <= parts <= len(costs):
        raise ValueError(f"{len(costs)} items cannot be cut into {parts} parts")
    sums = [0.0, *accumulate(costs)]
    best = list(sums)  # of the first items in the parts so far, the cost of the most expensive
    cuts: list[list[int]] = []
    for part in range(1, parts):
        row, cut_at = [float("inf")] * len(sums), [0] * len(sums)
        for end in range(part + 1, len(sums)):
            for begin in range(part, end):
                cost = max(best[begin], sums[end] - sums[begin])
                if cost < row[end]:
                    row[end], cut_at[end] = cost, begin
        cuts.append(cut_at)
        best = row
    ends = [len(costs)]
    for cut_at in reversed(cuts):
        ends.append(cut_at[ends[-1]])
    ends.append(0)
    return [range(begin, end) for end, begin in pairwise(ends)][::-1]
