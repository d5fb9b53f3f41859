"""Reductions without negotiation: how long processes that share processors wait for each other."""

from __future__ import annotations

import os
import time

import torch

from lockstitch.collectives.arithmetic import fold
from lockstitch.collectives.copying import copy
from lockstitch.collectives.shared_memory.definitions import (
    block_bytes_for,
    in_place_bytes_for,
    slice_of,
)


class PlainWords:
    """One rank of several that reduce shared buckets and agree by words in shared memory: how many
    each has asked for, and how many it has done its part of."""

    def __init__(self, rank: int, size: int, words: torch.Tensor, buckets: torch.Tensor) -> None:
        self._words = words  # whose memory it is
        self._asked, self._done = (memoryview(each.numpy()) for each in words.view(2, size))
        self._rank = rank
        self._buckets = buckets
        self._turns = 0
        self.asked: list[float] = []
        """When this rank asked for each, in seconds."""
        self.known: list[float] = []
        """When it knew that all had."""
        count = buckets.shape[-1]
        # As it is done where they live in a session's segment.
        self.is_sliced = size > 1 and 4 * count >= in_place_bytes_for(size)
        begin, end = slice_of(count, size, rank, 4) if self.is_sliced else (0, count)
        length = block_bytes_for(size) // 4
        self._blocks = [(at, min(at + length, end)) for at in range(begin, end, length)]
        self.result = torch.empty(count)
        """The sum, where it is not written into the buckets."""

    def reduce(self, turn: int) -> None:
        """Asks for a bucket, waits for the others, does this rank's part and waits for theirs."""
        self._turns += 1
        self.asked.append(time.monotonic())
        self._asked[self._rank] = self._turns
        self._wait_for(self._asked)
        self.known.append(time.monotonic())
        bucket = self._buckets[turn % len(self._buckets)]
        for begin, end in self._blocks:
            first, *others = (each[begin:end] for each in bucket)
            out = first if self.is_sliced else self.result[begin:end]
            fold(torch.add, [first, *others], out)
            if self.is_sliced:
                for other in others:
                    copy(other, first)
        if self.is_sliced:
            self._done[self._rank] = self._turns
            self._wait_for(self._done)

    def _wait_for(self, words: memoryview) -> None:
        while min(words) < self._turns:
            os.sched_yield()
