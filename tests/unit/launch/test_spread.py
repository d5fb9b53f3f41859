from __future__ import annotations

from lockstitch.launch.process import Seat
from lockstitch.launch.spread import seats


def test_ranks_are_numbered_host_by_host():
    assert seats((("a", 2), ("b", 3), ("c", 1)), 4) == [
        Seat(0, 4, "a", 0, 2, 0, 2),
        Seat(1, 4, "a", 1, 2, 0, 2),
        Seat(2, 4, "b", 0, 2, 1, 2),
        Seat(3, 4, "b", 1, 2, 1, 2),
    ]


def test_hosts_with_fewer_workers_have_fewer_neighbours():
    assert [(s.cross_rank, s.cross_size) for s in seats((("a", 2), ("b", 1)), 3)] == [
        (0, 2),
        (0, 1),
        (1, 2),
    ]
