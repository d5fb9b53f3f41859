"""Where small tensors lie, and when a place is free again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch.collectives import SUM, Kind
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.requests import Description
from lockstitch.collectives.shared_memory.definitions import Definition
from lockstitch.collectives.shared_memory.lanes import Lanes
from lockstitch.collectives.shared_memory.operations import NOWHERE, Part
from lockstitch.collectives.shared_memory.segment import (
    SHORT_PLACES,
    SMALL_PLACES,
    Geometry,
    Segment,
    create,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def lanes() -> Iterator[list[Lanes]]:
    """Those of a set of ranks 3 and 5, as each of the two sees them."""
    geometry = Geometry(8, 1 << 20, 1 << 10, 2)
    descriptor = create(geometry)
    members = ProcessSet(1, (3, 5))
    yield [Lanes(members, rank, Segment(descriptor, geometry)) for rank in members.ranks]
    os.close(descriptor)


def defined(count: int, kind: Kind = Kind.ALLREDUCE, root: int = -1) -> Definition:
    reduction = SUM if kind is Kind.ALLREDUCE else None
    description = Description(kind, "x", ("float32",), ((count,),), reduction, root)
    return Definition(description, description.encode())


SMALL, LARGE = defined(1024), defined(1025)


@pytest.mark.parametrize("definition", [SMALL, LARGE])
def test_what_one_rank_puts_there_the_other_reads(
    lanes: list[Lanes], definition: Definition
) -> None:
    mine, theirs = lanes[0].own, lanes[1].of_rank[3]
    count = definition.lane_places
    assert count == (SMALL_PLACES if definition is SMALL else SHORT_PLACES)
    for serial in range(count):
        view, result = mine.view(definition, serial), mine.result(definition, serial)
        assert view is not None
        view.fill_(serial)
        result.fill_(-serial)
        assert view.data_ptr() == mine.address(definition) + serial * definition.lane_stride
    for serial in range(count):
        read = theirs.view(definition, serial)
        assert read is not None
        assert torch.equal(read, torch.full_like(read, serial))
        assert torch.equal(theirs.result(definition, serial), -read)


def test_places_of_both_sizes_are_apart(lanes: list[Lanes]) -> None:
    places = [
        (own.place(each, serial), each.layout.size)
        for own in lanes[0].of_rank.values()
        for each in (SMALL, defined(1 << 14))
        for serial in range(each.lane_places)
    ]
    places.sort()
    ends = [begin + size for begin, size in places]
    assert all(end <= begin for end, (begin, _) in zip(ends, places[1:], strict=False))


def test_who_gives_nothing_has_no_place(lanes: list[Lanes]) -> None:
    sent = defined(4, Kind.BROADCAST, root=5)
    assert lanes[0].own.place(sent, 0) == NOWHERE
    assert lanes[0].own.view(sent, 0) is None
    assert lanes[0].of_rank[5].view(sent, 0) is not None


@pytest.mark.parametrize("definition", [SMALL, LARGE])
def test_a_place_is_free_when_all_have_finished(lanes: list[Lanes], definition: Definition) -> None:
    writer, reader = lanes
    count, own = definition.lane_places, writer.own

    def put() -> int:
        place = writer.free_place(definition)
        if place >= 0:
            assert writer.use(definition, place) == own.taken - 1
        return place

    assert sorted(put() for _ in range(count)) == list(range(count))
    assert put() == -1
    for serial in range(count):
        own.hold(serial)
    theirs = reader.of_rank[3]
    serials = [theirs.take() for _ in range(3)]
    theirs.finish(serials[1], reader.position)  # the first may still be read
    reader.finish([Part(3, definition, 0, is_resident=False)])  # it lay elsewhere
    assert put() == -1
    reader.finish([Part(3, definition, 0, is_resident=False, serial=serials[0])])
    assert put() == -1  # this rank itself has not made its result
    for serial in range(2):
        writer.finish([Part(3, definition, 0, is_resident=False, serial=serial)])
    assert sorted([put(), put()]) == [0, 1]
    assert put() == -1


def test_the_same_few_places_are_used_again(lanes: list[Lanes]) -> None:
    writer, reader = lanes
    used = set()
    for serial in range(100):
        used.add(place := writer.free_place(SMALL))
        writer.use(SMALL, place)
        reader.of_rank[3].finish(reader.of_rank[3].take(), reader.position)
        writer.own.finish(serial, writer.position)
    assert len(used) <= SHORT_PLACES
