"""The tree along which ranks talk to rank 0: the same for all, and nobody has many to talk to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.collectives.c10d.tree import NOBODY, place_of
from lockstitch.collectives.topology import Topology


def hosts_of(names: list[int]) -> tuple[int, ...]:
    return Topology.of(0, [str(name) for name in names]).hosts


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40), st.integers(2, 5))
def test_all_ranks_are_in_one_tree_below_rank_0(names: list[int], fan_in: int) -> None:
    hosts = hosts_of(names)
    places = [place_of(rank, hosts, fan_in) for rank in range(len(hosts))]
    assert [place.rank for place in places if place.parent == NOBODY] == [0]
    for place in places:
        below = {rank for ranks in place.branches.values() for rank in ranks}
        assert sum(map(len, place.branches.values())) == len(below)
        assert place.rank not in below
        for branch, ranks in place.branches.items():
            assert places[branch].parent == place.rank
            deeper = {rank for each in places[branch].branches.values() for rank in each}
            assert set(ranks) == {branch, *deeper}
            assert list(ranks) == sorted(ranks)
        if place.rank:
            assert place.rank in places[place.parent].branches
    whole = {rank for ranks in places[0].branches.values() for rank in ranks}
    assert whole == set(range(1, len(hosts)))


@pytest.mark.parametrize(
    ("ranks", "per_host", "most", "levels"),
    [(64, 8, 63, 1), (65, 8, 15, 2), (4096, 8, 30, 3), (4096, 1, 64, 2), (100_000, 8, 31, 4)],
)
def test_nobody_has_many_to_talk_to(ranks: int, per_host: int, most: int, levels: int) -> None:
    hosts = tuple(rank // per_host for rank in range(ranks))
    root = place_of(0, hosts, 64)
    assert len(root.branches) <= most
    depth, rank = 0, ranks - 1
    while rank:
        rank, depth = place_of(rank, hosts, 64).parent, depth + 1
    assert depth <= levels


def test_ranks_of_a_small_world_talk_to_rank_0_themselves() -> None:
    place = place_of(0, (0, 0, 1, 1), 4)
    assert (place.parent, dict(place.branches)) == (NOBODY, {1: (1,), 2: (2,), 3: (3,)})
    assert not place.speakers
    assert place_of(2, (0, 0, 1, 1), 4).parent == 0
    assert not place_of(2, (0, 0, 1, 1), 4).is_speaker


def test_first_rank_of_a_host_speaks_for_it() -> None:
    hosts = (0, 1, 0, 1, 1)
    assert place_of(0, hosts, 2).speakers == (1,)
    assert place_of(1, hosts, 2).is_speaker
    assert dict(place_of(1, hosts, 2).branches) == {3: (3,), 4: (4,)}
    assert place_of(4, hosts, 2).parent == 1
