"""What `run` makes of its arguments."""

from __future__ import annotations

import inspect
import pickle
import threading
from types import SimpleNamespace

import pytest

from lockstitch import spark
from lockstitch.errors import SerializationError
from lockstitch.spark import running
from tests.unit.spark.fakes import FakeContext, FakeSpark


@pytest.fixture
def context(monkeypatch):
    made = FakeContext()
    FakeSpark(made).install(monkeypatch)
    return made


def test_parameters_are_those_of_the_original_in_its_order():
    parameters = inspect.signature(spark.run).parameters
    assert (
        list(parameters)
        == (
            "fn args kwargs num_proc start_timeout use_mpi use_gloo extra_mpi_args env stdout "
            "stderr verbose nics prefix_output_with_timestamp executable"
        ).split()
    )
    assert parameters["verbose"].default == 1


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", True])
def test_a_number_of_ranks_that_makes_no_sense_is_refused(context, wrong):
    with pytest.raises(ValueError, match="num_proc is a number of ranks"):
        spark.run(print, num_proc=wrong)


def test_two_controllers_are_one_too_many(context):
    with pytest.raises(ValueError, match="use_mpi or use_gloo, not both"):
        spark.run(print, use_mpi=True, use_gloo=True)


def test_what_cannot_be_pickled_is_named(context):
    lock = threading.Lock()

    def train():
        return lock

    with pytest.raises(SerializationError, match=r"train or what .* cannot be pickled.*lock"):
        spark.run(train, num_proc=1)


def test_the_time_to_begin(monkeypatch):
    assert running.start_seconds_of(None) == 600
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "30")
    assert running.start_seconds_of(None) == 30
    assert running.start_seconds_of(5) == 5
    for wrong in (0, -1, "soon", float("nan")):
        with pytest.raises(ValueError, match="HOROVOD_SPARK_START_TIMEOUT"):
            running.start_seconds_of(wrong)


def test_what_tunes_a_job_is_passed_on_and_what_places_it_or_opens_it_is_not(monkeypatch):
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    monkeypatch.setenv("LOCKSTITCH_REPLACE", "horovod")
    monkeypatch.setenv("LOCKSTITCH_SECRET", "00" * 32)
    monkeypatch.setenv("LOCKSTITCH_ADDRESS", "10.0.0.1")
    monkeypatch.setenv("MY_PASSWORD", "x")
    told = running.environment_for_ranks({"A": "1"}, ["eth1", "eth0"])
    assert told["HOROVOD_FUSION_THRESHOLD"] == "0"
    assert told["LOCKSTITCH_REPLACE"] == "horovod"
    assert told["A"] == "1"
    assert told["GLOO_SOCKET_IFNAME"] == told["NCCL_SOCKET_IFNAME"] == "eth0,eth1"
    assert told.keys().isdisjoint({"LOCKSTITCH_SECRET", "LOCKSTITCH_ADDRESS", "MY_PASSWORD"})


def test_variables_that_are_no_texts_are_refused():
    with pytest.raises(ValueError, match="variables of the environment are texts"):
        running.environment_for_ranks({"A": 1}, None)


@pytest.mark.parametrize(
    ("master", "conf", "listens", "reached"),
    [
        ("local[2]", {"spark.driver.host": "h"}, "tcp:127.0.0.1:0", "tcp:127.0.0.1:7"),
        ("spark://m:7077", {"spark.driver.host": "h"}, "tcp:h:0", "tcp:h:7"),
        (
            "k8s://m",
            {"spark.driver.host": "h", "spark.driver.bindAddress": "0.0.0.0"},
            "tcp:0.0.0.0:0",
            "tcp:h:7",
        ),
    ],
)
def test_tasks_reach_the_driver_as_executors_do(master, conf, listens, reached):
    context = FakeContext(master, conf=conf)
    assert running.listening_address(context) == listens
    assert running.address_for_tasks(context, listens.removesuffix("0") + "7") == reached


def test_a_call_is_what_a_rank_reads():
    fn, args, kwargs = pickle.loads(running.pickled_call(max, [1, 2], {"key": abs}))
    assert (fn, args, kwargs) == (max, (1, 2), {"key": abs})


def test_results_that_spark_loses_on_their_way_are_told():
    text = running._reason(None, RuntimeError("out of memory"), has_returned=True)
    assert "the ranks have returned" in text
    assert "spark.driver.maxResultSize" in text
    assert "before its ranks had begun" in running._reason(None, None, has_returned=False)


def test_what_spark_cannot_clear_away_hides_no_error(monkeypatch):
    def gone():
        raise RuntimeError("the context was stopped")

    context = FakeContext()
    monkeypatch.setattr(context, "broadcast", lambda _call: SimpleNamespace(destroy=gone))
    with pytest.raises(LookupError), running.broadcasting(context, b"x"):
        raise LookupError
