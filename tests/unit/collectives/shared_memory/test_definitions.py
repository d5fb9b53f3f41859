"""Definitions: one for equal descriptions, from whomever."""

from __future__ import annotations

import os

import pytest
import torch

from lockstitch.collectives.requests import SUM, Kind, ReduceOp, Reduction, Request, describe
from lockstitch.collectives.shared_memory.definitions import (
    ONE_PHASE_BYTES,
    Definitions,
    chunk_bytes_for,
)
from lockstitch.collectives.shared_memory.segment import Geometry, Segment, create


def content(reduction: Reduction | None, *tensors: torch.Tensor) -> bytes:
    kind = Kind.ALLREDUCE if reduction else Kind.ALLGATHER
    return describe(Request(kind, "a", tensors, reduction=reduction)).encode()


def test_equal_descriptions_are_one_definition() -> None:
    known = Definitions()
    mine = known.intern(content(SUM, torch.ones(2)))
    known.learn(3, 9, content(SUM, torch.zeros(2)))
    assert known.of(3, 9) is mine
    known.learn(3, 9, content(SUM, torch.zeros(3)))
    assert known.of(3, 9) is not mine


def test_what_may_be_cut_and_what_is_large() -> None:
    known = Definitions()
    large = torch.empty(ONE_PHASE_BYTES // 4 + 1)
    sliced = known.intern(content(SUM, large))
    assert (sliced.can_be_sliced, sliced.has_single, sliced.is_large) == (True, True, True)
    assert (
        sum(piece.end - piece.begin for c in sliced.chunks(1 << 18) for piece in c) == large.numel()
    )
    adasum = known.intern(content(Reduction(ReduceOp.ADASUM), large))
    assert (adasum.can_be_sliced, adasum.is_large) == (False, False)
    assert known.intern(content(None, large)).is_large
    assert not known.intern(content(None, large[:-9])).is_large
    assert not known.intern(content(None, large, large)).is_large
    assert not known.intern(content(SUM, large[:9], large[:9])).has_single


def test_views_lie_one_behind_the_other() -> None:
    geometry = Geometry(1, arena_bytes=1 << 16, log_words=64, most_sets=1)
    descriptor = create(geometry)
    segment = Segment(descriptor, geometry)
    os.close(descriptor)
    definition = Definitions().intern(content(SUM, torch.ones(3), torch.ones(2, 2).double()))
    begin = segment.arena_begins[0] + 256
    first, second = definition.views(segment, begin)
    assert (first.shape, second.shape, second.dtype) == ((3,), (2, 2), torch.float64)
    assert second.data_ptr() - first.data_ptr() == 64
    for place in range(200):  # more than are kept
        definition.views(segment, segment.arena_begins[0] + 256 * place)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_blocks_of_all_slices_make_the_whole_tensor(ranks: int) -> None:
    geometry = Geometry(ranks, arena_bytes=1 << 22, log_words=64, most_sets=1)
    descriptor = create(geometry)
    segment = Segment(descriptor, geometry)
    os.close(descriptor)
    count = 300_007
    definition = Definitions().intern(content(SUM, torch.ones(count)))
    places = tuple(begin + 256 for begin in segment.arena_begins)
    tensors = [segment.tensor(place, torch.float32, (count,)).zero_() for place in places]
    for index in range(ranks):
        blocks = Definitions().intern(definition.content).blocks(segment, places, index)
        for parts in blocks:
            assert max(part.nbytes for part in parts) <= 1 << 19
            for rank, part in enumerate(parts):
                part += 1 + rank
    for rank, tensor in enumerate(tensors):
        assert tensor.eq(1 + rank).all()
    assert definition.blocks(segment, places, 0) is definition.blocks(segment, places, 0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_chunks_of_several_tensors_fit_into_a_small_arena(ranks: int) -> None:
    assert 16 * chunk_bytes_for(ranks, 1 << 26) <= 1 << 26
    assert chunk_bytes_for(ranks, 1 << 36) > chunk_bytes_for(ranks, 1 << 20) > 0
