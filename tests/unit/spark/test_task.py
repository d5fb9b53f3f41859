"""What a task tells its rank, and what it asks Spark."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace

import pytest

from lockstitch.errors import CollectiveError
from lockstitch.spark import task
from lockstitch.spark.placement import TaskPlace, rank_tasks
from lockstitch.spark.rank import Ended
from lockstitch.spark.reports import Finished, Said
from lockstitch.spark.task import DEVICES, BarrierTask, TaskTerms, devices_of, environment_of
from lockstitch.trust import Secret
from tests.unit.spark.fakes import FakeBarrierContext, FakeSpark

SECRET = Secret(bytes(32))
PLACES = [TaskPlace("a", "10.0.0.1", 1234), TaskPlace("b", "10.0.0.2", 1235)]


def terms(**environment):
    return TaskTerms(None, environment, None, "tcp:127.0.0.1:9", True, SECRET.text())


def test_a_rank_is_told_its_place_as_by_any_launcher():
    told = environment_of(rank_tasks(PLACES)[1], PLACES[0], {})
    assert (told["HOROVOD_RANK"], told["HOROVOD_SIZE"], told["WORLD_SIZE"]) == ("1", "2", "2")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.0.0.1", "1234")
    assert (told["RANK"], told["LOCAL_RANK"], told["HOROVOD_LOCAL_SIZE"]) == ("1", "0", "1")
    assert told["HOROVOD_HOSTNAME"] == "b"  # what tells hosts apart


def test_ranks_of_one_host_meet_by_loopback():
    places = [TaskPlace("a", "10.0.0.1", 1234), TaskPlace("a", "10.0.0.1", 1235)]
    told = environment_of(rank_tasks(places)[1], places[0], {})
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("127.0.0.1", "1234")


def test_what_the_caller_says_counts_more_than_what_the_executor_has():
    inherited = {"A": "executor", "B": "executor", "LOCKSTITCH_BOARD": "of another job"}
    told = terms(A="caller").inherited(("1", "3"), inherited)
    assert (told["A"], told["B"], told[DEVICES]) == ("caller", "executor", "1,3")
    assert "LOCKSTITCH_BOARD" not in told
    assert os.getcwd() in told["PYTHONPATH"].split(os.pathsep)


def test_the_secret_is_in_no_variable_and_no_repr():
    told = environment_of(rank_tasks(PLACES)[0], PLACES[0], terms().inherited((), {}))
    assert SECRET.text() not in repr(told) + repr(terms()) + repr(BarrierTask(terms()))


def test_gpus_that_spark_has_given():
    meeting = SimpleNamespace(messages=[""])
    assert devices_of(FakeBarrierContext(0, meeting, gpus=["2", "5"])) == ("2", "5")
    assert devices_of(FakeBarrierContext(0, meeting)) == ()


def test_no_rank_runs_twice(monkeypatch):
    spark = FakeSpark(None).install(monkeypatch)
    again = FakeBarrierContext(0, SimpleNamespace(messages=[""]), attempt=1)
    spark.BarrierTaskContext = SimpleNamespace(get=lambda: again)
    with pytest.raises(CollectiveError, match="no rank runs twice"):
        next(BarrierTask(terms())(0, iter(())))


class Driver:
    """The line to a driver, which hangs up after so many reports."""

    def __init__(self, reports):
        self.heard = []
        self._reports = reports

    def tell(self, report):
        if len(self.heard) == self._reports:
            raise BrokenPipeError("broken pipe")
        self.heard.append(report)

    def await_end(self):
        pass


def run_a_rank(monkeypatch, driver, result):
    """Has a task run a rank that writes a line and returns that."""

    def run_rank(_call, _secret, _environment, listener, _executable, _until):
        listener("stdout", "a line")
        return Ended("killed by SIGKILL", result, None, False, result is not None, "")

    monkeypatch.setattr(task, "run_rank", run_rank)
    call = SimpleNamespace(value=b"")
    return TaskTerms(call, {}, None, "tcp:127.0.0.1:9", True, SECRET.text()).run(driver, {})


def test_a_task_whose_driver_has_hung_up_has_failed(monkeypatch):
    for reports, result in [(0, b""), (1, b""), (0, None)]:
        with pytest.raises(CollectiveError, match=r"driver has hung up.*killed by SIGKILL"):
            run_a_rank(monkeypatch, Driver(reports), result)


def test_the_driver_is_told_what_the_log_of_the_executor_cannot_take(monkeypatch):
    class Full(io.StringIO):
        def write(self, _text):
            raise OSError("no space left")

    driver = Driver(9)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Full())
        run_a_rank(monkeypatch, driver, b"")
    assert driver.heard == [Said("stdout", "a line"), Finished()]
