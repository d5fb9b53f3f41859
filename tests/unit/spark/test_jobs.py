"""A job of Spark in a thread of its own."""

from __future__ import annotations

import select
import threading

import pytest

from lockstitch.spark.jobs import SparkJob, what_spark_says
from tests.unit.spark.fakes import FakeContext, FakeSpark

SECONDS = 30


@pytest.fixture
def context(monkeypatch):
    made = FakeContext()
    FakeSpark(made).install(monkeypatch)
    return made


def test_it_is_readable_when_it_is_over_and_has_the_value(context):
    go_on = threading.Event()
    job = SparkJob(context, "", lambda: go_on.wait(SECONDS) and 3)
    assert not select.select([job], [], [], 0)[0]
    assert not job.is_over
    go_on.set()
    assert select.select([job], [], [], SECONDS)[0]
    job.wait()
    assert (job.value, job.error) == (3, None)
    job.close()
    job.close()


def test_an_error_is_kept_for_whoever_waits(context):
    def fail():
        raise LookupError("no")

    job = SparkJob(context, "", fail)
    job.wait()
    assert isinstance(job.error, LookupError)
    job.close()


def test_each_has_a_group_by_which_it_alone_is_cancelled(context):
    jobs = [SparkJob(context, "", lambda: None) for _ in range(2)]
    for job in jobs:
        job.wait()
        job.close()
    assert sorted(context.groups) == sorted(job.group for job in jobs)
    assert len(set(context.groups)) == 2
    jobs[1].cancel()
    assert context.cancelled == [jobs[1].group]


def test_cancelling_in_a_context_that_was_stopped_is_harmless(context):
    job = SparkJob(context, "", lambda: None)
    job.wait()
    context._jsc = None
    job.cancel()
    job.close()


def test_of_an_error_of_the_jvm_its_words_are_taken_and_not_its_stack():
    class OfJava:
        def getMessage(self):  # noqa: N802 - Java's name
            return "Job aborted: lost\n\tat org.apache.A\n\tat org.apache.B\nDriver stacktrace:"

    error = RuntimeError("An error occurred while calling o1\n")
    error.java_exception = OfJava()
    assert what_spark_says(error) == "Job aborted: lost"
    assert what_spark_says(ValueError("as it is")) == "as it is"
