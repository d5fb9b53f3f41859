"""Ranks and variables; the actors themselves are tested on Ray (tests/engines)."""

from __future__ import annotations

import pytest

from lockstitch.ray.fixed import FixedPlan, rank_environments
from lockstitch.ray.settings import WorkerResources
from lockstitch.ray.worker import WorkerPlace

ONE = WorkerResources()


def places(*nodes):
    return [WorkerPlace(node, f"10.0.0.{node}", 100 + n) for n, node in enumerate(nodes)]


def test_each_rank_is_told_its_place_in_all_three_ways_of_counting():
    told = rank_environments(places("1", "1", "2"), 4711)
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    numbers = [[each[f"HOROVOD_{name}"] for name in names] for each in told]
    assert numbers == [
        ["0", "3", "0", "2", "0", "2"],
        ["1", "3", "1", "2", "0", "1"],
        ["2", "3", "0", "1", "1", "2"],
    ]
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in told} == {("10.0.0.1", "4711")}
    assert [each["LOCKSTITCH_ADDRESS"] for each in told] == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
    assert not any("SECRET" in name for each in told for name in each)


def test_so_many_workers_anywhere_or_so_many_on_each_host():
    anywhere = FixedPlan(ONE, workers=3)
    assert (anywhere.size, anywhere.wish().strategy) == (3, "PACK")
    assert [anywhere.bundle_of(worker) for worker in range(3)] == [0, 1, 2]
    hosts = FixedPlan(ONE, hosts=2, workers_per_host=2)
    assert (hosts.size, hosts.wish().strategy) == (4, "STRICT_SPREAD")
    assert hosts.wish().bundles == [{"CPU": 2}, {"CPU": 2}]
    assert [hosts.bundle_of(worker) for worker in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({}, "say how many workers"),
        ({"workers": 2, "hosts": 1}, "say how many workers"),
        ({"workers": 0}, "num_workers must be at least 1"),
        ({"hosts": -1}, "num_hosts must be at least 1"),
        ({"hosts": 1, "workers_per_host": 0}, "num_workers_per_host must be at least 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(numbers, words):
    with pytest.raises(ValueError, match=words):
        FixedPlan(ONE, **numbers)
