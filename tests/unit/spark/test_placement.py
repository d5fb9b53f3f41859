"""Which task gets which rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.spark.placement import TaskPlace, rank_tasks


def places(hosts):
    return [TaskPlace(host, f"10.0.0.{host}", 1000 + task) for task, host in enumerate(hosts)]


def test_ranks_of_a_host_are_neighbours_though_spark_alternates_between_hosts():
    ranks = rank_tasks(places("abab"))
    assert [each.rank for each in ranks] == [0, 2, 1, 3]
    assert [each.local_rank for each in ranks] == [0, 0, 1, 1]
    assert [each.cross_rank for each in ranks] == [0, 1, 0, 1]
    assert {(each.size, each.local_size, each.cross_size) for each in ranks} == {(4, 2, 2)}


def test_hosts_with_different_numbers_of_tasks():
    ranks = rank_tasks(places("baabb"))
    assert [each.rank for each in ranks] == [0, 3, 4, 1, 2]
    assert [each.local_size for each in ranks] == [3, 2, 2, 3, 3]
    assert [each.cross_size for each in ranks] == [2, 2, 2, 2, 1]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_each_rank_is_given_once_and_each_host_has_a_range_of_them_in_the_order_of_tasks(hosts):
    ranks = rank_tasks(places(hosts))
    assert sorted(each.rank for each in ranks) == list(range(len(hosts)))
    assert ranks[0].rank == 0
    for host in set(hosts):
        own = [each.rank for each, of in zip(ranks, hosts, strict=True) if of == host]
        assert own == list(range(own[0], own[0] + len(own)))


def test_a_place_survives_the_way_to_the_other_tasks():
    place = TaskPlace("boot/net:[1]", "::1", 1234)
    assert TaskPlace.decode(place.encode()) == place
