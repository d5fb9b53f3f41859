"""`lockstitch.hvd.spark` on a real Spark: threads of one JVM, and executors of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra engines")

PROGRAMS = Path(__file__).with_name("spark_programs.py")
LOCAL, CLUSTER = "local[4]", "local-cluster[2,2,1024]"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def outcome(name, master):
    """Runs a program in a session of its own; returns what it has found out."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), name, master],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=890,  # JVMs and interpreters start one after the other on a busy machine
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("master", [LOCAL, CLUSTER])
def test_a_training_of_horovod_is_that_of_one_process(master):
    found = outcome("training", master)
    assert found["ranks"] == [[rank, 4] for rank in range(4)]
    assert found["again"] == [[0, 2, None], [1, 2, None]]
    assert found["mine"] == ["1"] * 4
    assert found["processes"] == 6  # new ones, though Spark uses its own again
    assert found["largest_difference"] < 1e-6
    hello = "[{0}]<stdout>:Hello, rank = {0}, magic_number = {1}"
    assert found["out"] == sorted(
        [hello.format(rank, 42) for rank in range(4)] + [hello.format(rank, 43) for rank in (0, 1)]
    )


@pytest.mark.parametrize("master", [LOCAL, CLUSTER])
def test_what_goes_wrong_is_told_in_words_and_within_seconds(master):
    found = outcome("faults", master)
    text, cause, _ = found["raises"]
    assert "rank 1 on " in text
    assert "it raised LookupError('the bug')" in text
    assert cause == "LookupError('the bug')"
    assert "killed by SIGKILL" in found["rank"][0]
    assert "rank 1 on " in found["rank"][0]
    assert "its task has ended without a word" in found["task"][0]
    assert "Python worker exited unexpectedly" in found["task"][0]
    assert "5 ranks were asked for" in found["too many"][0]
    assert "can run 4 tasks at once" in found["too many"][0]
    assert found["too many"][2] < 60
    assert "0 of 2 ranks have begun within 3 s" in found["busy"][0]
    assert len(set(found["afterwards"])) == 2
    assert "Could not find an active SparkContext" in found["stopped"][0]


@pytest.mark.parametrize("master", [LOCAL, CLUSTER])
def test_the_secret_stands_nowhere_but_in_the_files_of_the_ranks(master):
    found = outcome("secrets", master)
    assert found["secrets"] == 1
    assert found["found"] == []
    assert not found["in_conf"]
    assert found["logs"] > 0


@pytest.mark.parametrize("master", [LOCAL, CLUSTER])
def test_a_killed_task_of_an_elastic_job_is_replaced_while_the_others_go_on(master):
    found = outcome("elastic", master)
    results = found["results"]
    assert [rank for rank, *_ in results] == [0, 1, 2]
    assert results[0][1][:2] == [3, 2]  # the first world, and the one without whom was killed
    assert len({str(weights) for _, _, weights, _ in results}) == 1
    assert len({step for *_, step in results}) == 1
    text, cause = found["failed"]
    assert "ZeroDivisionError" in text
    assert cause == "ZeroDivisionError('division by zero')"


@pytest.mark.parametrize("master", [LOCAL, CLUSTER])
def test_ctrl_c_ends_the_ranks_while_the_session_goes_on(master):
    assert outcome("interrupted", master).keys() == {"run", "run_elastic"}


def test_an_elastic_job_begins_where_executors_come_when_tasks_wait_for_them():
    results = outcome("allocated", CLUSTER)["results"]
    assert [rank for rank, *_ in results] == [0, 1, 2]


def test_torch_distributor_starts_ranks_as_well():
    pytest.importorskip("pandas", reason="Spark's own needs it: pyspark[sql]")
    assert outcome("distributor", LOCAL) == [2, 5.0]
