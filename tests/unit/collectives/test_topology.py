"""Ranks, local ranks and cross ranks."""

from __future__ import annotations

from lockstitch.collectives.topology import Topology

HOSTS = ["b", "b", "a", "b", "a"]


def test_local_and_cross_ranks() -> None:
    places = [Topology.of(rank, HOSTS) for rank in range(5)]
    assert [(p.local_rank, p.local_size) for p in places] == [
        (0, 3),
        (1, 3),
        (0, 2),
        (2, 3),
        (1, 2),
    ]
    assert [(p.cross_rank, p.cross_size) for p in places] == [
        (0, 2),
        (0, 2),
        (1, 2),
        (0, 1),
        (1, 2),
    ]
    assert [p.hosts[p.rank] for p in places] == [0, 0, 1, 0, 1]


def test_homogeneous_when_all_hosts_have_as_many() -> None:
    assert not Topology.of(0, HOSTS).is_homogeneous
    assert Topology.of(0, ["x", "y", "x", "y"]).is_homogeneous
    assert Topology.of(0, ["x", "y"]).host_count == 2


def test_places_among_hosts_are_worked_out_once() -> None:
    place = Topology.of(8, [f"h{rank // 8}" for rank in range(64)])
    assert place.cross_ranks is place.cross_ranks
    assert place.local_ranks is place.local_ranks
    assert place.local_ranks == tuple(range(8, 16))
    assert place.cross_ranks == tuple(range(0, 64, 8))
