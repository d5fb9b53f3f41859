"""Ranks that come and go as jobs of Spark: what `run_elastic` makes of its arguments, who starts
workers, and how many there may be."""

from __future__ import annotations

import inspect
import signal
import threading
from queue import Queue
from types import SimpleNamespace

import pytest

from lockstitch import spark
from lockstitch.errors import CollectiveError, StalledError
from lockstitch.launcher_link.rank_coordinator import CoordinatorOptions, Ended, HostsFound
from lockstitch.launcher_link.slots import Slot
from lockstitch.spark import elastic
from lockstitch.spark.elastic import TaskStarter, _ElasticRun
from tests.unit.spark.fakes import FakeContext, FakeSpark

SECONDS = 30


@pytest.fixture
def context(monkeypatch):
    made = FakeContext()
    FakeSpark(made).install(monkeypatch)
    return made


@pytest.fixture
def starter(context):
    posted = Queue()
    made = TaskStarter(context, lambda worker, told: told["task"], posted.put)
    made.posted = posted
    yield made
    made.close()


def test_parameters_are_those_of_the_original_in_its_order():
    assert (
        list(inspect.signature(spark.run_elastic).parameters)
        == (
            "fn args kwargs num_proc min_num_proc max_num_proc start_timeout elastic_timeout "
            "reset_limit env stdout stderr verbose nics prefix_output_with_timestamp min_np max_np"
        ).split()
    )


@pytest.mark.parametrize(("least", "wanted", "most"), [(3, 2, 4), (1, 3, 2), (-1, 2, 2)])
def test_numbers_of_ranks_are_in_order(context, least, wanted, most):
    with pytest.raises(ValueError, match="are not in order"):
        spark.run_elastic(print, num_proc=wanted, min_num_proc=least, max_num_proc=most)


def test_less_room_than_the_least_number_of_ranks_is_told(context):
    with pytest.raises(CollectiveError, match=r"5 ranks were asked for.* can run 4 tasks"):
        spark.run_elastic(print, num_proc=6, min_num_proc=5)


def test_tasks_that_do_not_begin_in_time_are_told(context, monkeypatch):
    go_on = threading.Event()
    context.run_task = lambda *_: go_on.wait(SECONDS) and []
    monkeypatch.setattr(elastic.SparkJob, "cancel", lambda _job: go_on.set())
    with pytest.raises(StalledError, match=r"0 of 2 ranks have begun within 0.3 s"):
        spark.run_elastic(print, num_proc=2, start_timeout=0.3)


def test_a_worker_that_returns_has_ended_well_and_what_it_returned_is_kept(starter):
    starter.start(3, Slot("task0", 0), {"task": lambda _task, _rows: [b"x"]})
    assert starter.posted.get(timeout=SECONDS) == Ended(3, is_well=True)
    assert starter.results == {3: b"x"}
    assert starter.slots_in_use == []


def test_a_worker_whose_job_fails_has_ended_too_and_once_whoever_says_so_first(starter):
    go_on = threading.Event()

    def fail(_task, _rows):
        go_on.wait(SECONDS)
        raise LookupError("no")

    starter.start(0, Slot("task0", 0), {"task": fail})
    assert starter.slots_in_use == ["task0"]
    starter.note_end(0, is_well=False)  # its line broke
    assert starter.posted.get(timeout=SECONDS) == Ended(0, is_well=False)
    assert starter.slots_in_use == []
    go_on.set()
    starter.close()
    assert starter.posted.empty()
    assert starter.results == {}


def test_a_worker_that_cannot_be_started_has_ended(starter, monkeypatch):
    def stopped(*_args):
        raise AttributeError("'NoneType' object has no attribute 'sc'")

    monkeypatch.setattr(elastic, "SparkJob", stopped)
    starter.start(0, Slot("task0", 0), {"task": None})
    assert starter.posted.get_nowait() == Ended(0, is_well=False)
    starter.stop(0, signal.SIGKILL)


def test_a_worker_is_stopped_by_the_end_of_its_job(starter, context):
    go_on = threading.Event()

    def wait(_task, _rows):
        go_on.wait(SECONDS)
        return []

    starter.start(0, Slot("task0", 0), {"task": wait})
    starter.stop(0, signal.SIGTERM)
    go_on.set()
    assert starter.posted.get(timeout=SECONDS) == Ended(0, is_well=True)
    assert len(context.cancelled) == 1


def found(room, in_use, most=4, **conf):
    """The slots that a conductor is told of."""
    told = []
    context = FakeContext("spark://h:7077", (room,), conf)
    run = _ElasticRun(context, CoordinatorOptions(wanted=1, max_workers=most), None)
    run._look_for_room(SimpleNamespace(post=told.append), SimpleNamespace(slots_in_use=in_use))
    run._look_for_room(SimpleNamespace(post=told.append), SimpleNamespace(slots_in_use=in_use))
    (event,) = told  # only what is new is told
    assert isinstance(event, HostsFound)
    assert {count for _, count in event.slots} == {1}
    return [host for host, _ in event.slots]


def test_there_are_as_many_slots_as_spark_can_run_tasks_and_no_more_than_ranks_are_wanted():
    assert found(3, []) == ["task0", "task1", "task2"]
    assert found(9, []) == ["task0", "task1", "task2", "task3"]


def test_where_spark_brings_executors_when_tasks_wait_there_is_room_for_all_ranks():
    assert found(0, [], **{"spark.dynamicAllocation.enabled": "true"}) == [
        f"task{number}" for number in range(4)
    ]


def test_slots_in_use_stay_when_an_executor_is_lost_until_their_tasks_have_ended():
    assert found(2, ["task0", "task1", "task2", "task3"]) == ["task0", "task1", "task2", "task3"]
    assert found(2, ["task2", "task3"]) == ["task2", "task3"]
    assert found(3, ["task2", "task3"]) == ["task0", "task2", "task3"]
