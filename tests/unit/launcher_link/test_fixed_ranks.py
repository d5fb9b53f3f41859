from __future__ import annotations

from lockstitch.launcher_link.fixed_ranks import WorkerRanks, host_by_host, ranks_on


def test_ranks_count_among_all_on_their_host_and_across_hosts():
    assert ranks_on("aabb") == [
        WorkerRanks(0, 4, "a", 0, 2, 0, 2),
        WorkerRanks(1, 4, "a", 1, 2, 0, 2),
        WorkerRanks(2, 4, "b", 0, 2, 1, 2),
        WorkerRanks(3, 4, "b", 1, 2, 1, 2),
    ]


def test_hosts_with_fewer_workers_have_fewer_neighbours():
    assert [(s.cross_rank, s.cross_size) for s in ranks_on("aab")] == [(0, 2), (0, 1), (1, 2)]


def test_workers_of_a_host_get_ranks_that_follow_each_other():
    assert host_by_host("babca") == [0, 2, 1, 4, 3]
