from __future__ import annotations

from lockstitch.launch.multi_host import assign_ranks
from lockstitch.launch.process import WorkerRanks


def test_ranks_are_numbered_host_by_host():
    assert assign_ranks((("a", 2), ("b", 3), ("c", 1)), 4) == [
        WorkerRanks(0, 4, "a", 0, 2, 0, 2),
        WorkerRanks(1, 4, "a", 1, 2, 0, 2),
        WorkerRanks(2, 4, "b", 0, 2, 1, 2),
        WorkerRanks(3, 4, "b", 1, 2, 1, 2),
    ]


def test_hosts_with_fewer_workers_have_fewer_neighbours():
    assert [(s.cross_rank, s.cross_size) for s in assign_ranks((("a", 2), ("b", 1)), 3)] == [
        (0, 2),
        (0, 1),
        (1, 2),
    ]
