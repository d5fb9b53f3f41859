"""The segment: sparse, shared by all that map it, gone with the last of them."""

from __future__ import annotations

import os

import torch

from lockstitch.collectives.shared_memory.segment import LANE_BYTES, Geometry, Segment, create
from lockstitch.memory.leases import NOTHING, Lease, window

GEOMETRY = Geometry(2, arena_bytes=1 << 20, log_words=64, most_sets=4)


def two_mappings() -> tuple[Segment, Segment]:
    descriptor = create(GEOMETRY)
    try:
        return Segment(descriptor, GEOMETRY), Segment(descriptor, GEOMETRY)
    finally:
        os.close(descriptor)


def test_what_one_writes_another_reads() -> None:
    one, other = two_mappings()
    one.log(3, 1)[5] = 77
    assert other.log(3, 1)[5] == 77
    begin = one.arena_begins[1] + 128
    one.tensor(begin, torch.float32, (2, 3)).fill_(1.5)
    assert other.vector(begin, torch.float32, 6).tolist() == [1.5] * 6
    assert other.vector(begin, torch.float32, 6) is other.vector(begin, torch.float32, 6)


def test_areas_do_not_overlap() -> None:
    segment, _ = two_mappings()
    areas = [segment.sleepers(), segment.places(), *(segment.tails(s, 2) for s in range(4))]
    areas += [segment.cursors(s, w, 2) for s in range(4) for w in range(2)]
    areas += [segment.log(s, w) for s in range(4) for w in range(2)]
    areas += [segment.results(s, 2) for s in range(4)]
    lanes = [segment.lane(s, w) for s in range(4) for w in range(2)]
    areas += [segment.words(begin, LANE_BYTES // 8) for begin in lanes]
    for number, area in enumerate(areas, 1):
        for index in range(len(area)):
            area[index] = number
    for number, area in enumerate(areas, 1):
        assert set(area.tolist()) == {number}
    assert segment.arena_begins[0] >= GEOMETRY.arenas_begin
    assert segment.arena_begins[1] + GEOMETRY.arena_bytes == GEOMETRY.size


def test_mapping_holds_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    segments = two_mappings()
    assert len(set(os.listdir("/proc/self/fd"))) == len(before)
    del segments


def test_memory_carries_a_tensor_of_its_own_storage() -> None:
    segment, other = two_mappings()
    begin = segment.arena_begins[0] + 256
    memory = window(segment.address + begin, 40, Lease(NOTHING, segment.mapping))
    tensor = torch.frombuffer(memory, dtype=torch.float64)
    tensor.fill_(2)
    assert tensor.untyped_storage().nbytes() == 40
    assert other.vector(begin, torch.float64, 5).tolist() == [2] * 5
