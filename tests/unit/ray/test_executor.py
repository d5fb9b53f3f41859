"""What executors are told, and when they may be used; tests/engines has the ranks, on Ray."""

from __future__ import annotations

import pytest

from lockstitch.errors import NotInitializedError, PlacementError
from lockstitch.ray import ElasticRayExecutor, RayExecutor
from tests.unit.ray.cluster import FakeRay


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    return FakeRay(("n1", "10.0.0.1", {"CPU": 2.0})).install(monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "say how many workers"),
        ({"num_workers": 2, "min_workers": 1}, "Both `min_workers` and `num_workers` provided"),
        ({"num_hosts": 2, "min_workers": 1}, "not both"),
        ({"num_workers": 1, "max_workers": 2}, "give min_workers as well"),
        ({"min_workers": 3, "max_workers": 2}, "3 workers are more than 2"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "use_gpu is False"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        RayExecutor(None, **arguments)


def test_before_the_start_and_after_the_end_it_is_said_what_to_do():
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=5), min_workers=1)
    for use in (executor.run, executor.execute, executor.execute_single, executor.run_remote):
        with pytest.raises(NotInitializedError, match=r"call start\(\) first"):
            use(max)
    with executor:
        with pytest.raises(NotInitializedError, match="started already"):
            executor.start()
        with pytest.raises(NotImplementedError, match="execute_single needs ranks that stay"):
            executor.execute_single(max)
        with pytest.raises(NotImplementedError, match="run_remote needs ranks that stay"):
            executor.run_remote(max)
        with pytest.raises(TypeError, match="workers run a function"):
            executor.run(None)
    with pytest.raises(NotInitializedError, match="was shut down"):
        executor.run(max)
    executor.shutdown()


def test_more_ranks_than_slots_are_refused(cluster):
    cluster.has_room = False
    executor = RayExecutor(num_workers=3)
    with pytest.raises(PlacementError, match=r"3 × \(1 CPU\).*10\.0\.0\.1 has 2 CPU"):
        executor.start()
    with pytest.raises(NotInitializedError):
        executor.run(max)


def test_the_older_executor_has_its_numbers_in_its_settings():
    with pytest.warns(DeprecationWarning, match="min_np is now min_num_proc"):
        settings = ElasticRayExecutor.create_settings(min_np=2, max_num_proc=2)
    executor = ElasticRayExecutor(settings, cpus_per_slot=1, env_vars={"A": 1})
    executor.start()
    executor.shutdown()
    with pytest.raises(NotInitializedError, match="was shut down"):
        executor.run(max)
    with pytest.raises(TypeError, match="unexpected"):
        ElasticRayExecutor.create_settings(min_workers=2)
    with pytest.raises(ValueError, match="gpus_per_slot=1 asks for GPUs"):
        ElasticRayExecutor(settings, gpus_per_slot=1)


@pytest.mark.parametrize(
    ("older", "newer", "words"),
    [
        ({"num_slots": 3}, "num_workers_per_host", r"3 CPU"),
        ({"cpus_per_slot": 4}, "cpus_per_worker", r"4 CPU"),
        ({"use_gpu": True, "gpus_per_slot": 5}, "gpus_per_worker", r"5 GPU"),
    ],
)
def test_older_names_of_arguments_are_understood(cluster, older, newer, words):
    cluster.has_room = False
    with pytest.warns(DeprecationWarning, match=f"is now {newer}"):
        executor = RayExecutor(num_hosts=1, **older)
    with pytest.raises(PlacementError, match=words):
        executor.start()


def test_there_are_no_workers_before_the_start_nor_where_they_come_and_go():
    assert RayExecutor(num_workers=1).workers == []
    with RayExecutor(min_workers=1) as executor:
        assert executor.workers == []


def test_the_executors_say_what_they_are():
    assert repr(RayExecutor(num_workers=2)) == "<RayExecutor · not started>"
    assert "ElasticRayExecutor over" in repr(ElasticRayExecutor())
