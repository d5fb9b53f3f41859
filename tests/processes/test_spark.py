"""Ranks on Spark with real processes and a Spark that is a table of threads; with a real one:
`tests/engines`."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from queue import Queue

import cloudpickle
import pytest
import torch

from lockstitch import hvd, spark
from lockstitch.spark.rank import run_rank
from lockstitch.trust import Secret, find_secret
from tests.unit.spark.fakes import FakeContext, FakeSpark

SECRET = Secret(bytes(range(32)))


@pytest.fixture
def fake(monkeypatch):
    return FakeSpark(FakeContext()).install(monkeypatch)


def rank(function, until=None, **environment):
    """One rank, without Spark; returns how it ended, and what it said."""
    said = Queue()
    told = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", **environment}
    ended = run_rank(
        cloudpickle.dumps((function, (), {})),
        SECRET,
        told,
        lambda *line: said.put(line),
        until=until and (lambda: until(said)),
    )
    return ended, list(said.queue)


def runs(pid):
    """Whether a process is there, and more than what its parent has not yet looked at."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_ranks_reduce_and_what_they_return_comes_in_their_order(fake):
    fake.gpus = {0: ["2"], 1: ["5", "7"]}
    factor = 10

    def train(start, *, step):
        hvd.init()
        print("I am", hvd.rank())
        print("and complain", file=sys.stderr)
        total = hvd.allreduce(torch.tensor([start + step * hvd.rank()]), op=hvd.Sum).item()
        devices = os.environ["LOCKSTITCH_SPARK_GPUS"].split(",")
        return hvd.rank(), hvd.size(), hvd.local_size(), factor * total, devices, os.environ["MINE"]

    out, err = io.StringIO(), io.StringIO()
    assert spark.run(
        train, (1,), {"step": 2}, env={"MINE": "yes"}, stdout=out, stderr=err, verbose=0
    ) == [(0, 2, 2, 40, ["2"], "yes"), (1, 2, 2, 40, ["5", "7"], "yes")]
    assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>:I am 0", "[1]<stdout>:I am 1"]
    # A rank that has waited for others may say so, too.
    complaints = [line for line in err.getvalue().splitlines() if "complain" in line]
    assert sorted(complaints) == ["[0]<stderr>:and complain", "[1]<stderr>:and complain"]
    assert [each.is_destroyed for each in fake.SparkContext._active_spark_context.broadcasts] == [
        True
    ]


@pytest.mark.slow
def test_what_the_rank_that_failed_first_has_raised_is_the_cause(fake):
    def train():
        hvd.init()
        if hvd.rank() == 1:
            raise LookupError("the bug")
        hvd.barrier()

    out = io.StringIO()
    with pytest.raises(hvd.HorovodInternalError, match="rank 1 on .* exit code 1; it ra") as caught:
        spark.run(train, num_proc=2, stdout=out, stderr=out)
    error = caught.value.__cause__
    assert isinstance(error, LookupError)
    assert "in train" in str(error.__cause__)
    assert "[1]<stderr>:LookupError: the bug" in out.getvalue()


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named(fake):
    def train():
        hvd.init()
        if hvd.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    out = io.StringIO()
    with pytest.raises(hvd.HorovodInternalError, match="rank 0 on .* killed by SIGKILL") as caught:
        spark.run(train, num_proc=2, stdout=out, stderr=out)
    assert caught.value.__cause__ is None


@pytest.mark.slow
def test_a_program_that_ends_before_its_function_returns_is_no_success():
    ended, _ = rank(lambda: sys.exit(0))
    assert ended.result is None
    assert "before the function returned" in ended.how
    ended, _ = rank(lambda: os._exit(3))
    assert (ended.result, ended.how) == (None, "exit code 3")


@pytest.mark.slow
def test_the_secret_is_in_a_file_of_the_rank_which_goes_with_it():
    def look():
        secret = find_secret(None, None, os.environ)
        mine = os.environ["LOCKSTITCH_SECRET_FILE"]
        known = secret.text().encode()
        seen = [Path(f"/proc/{each}/environ").read_bytes() for each in ("self", os.getppid())]
        seen += [Path(f"/proc/{each}/cmdline").read_bytes() for each in ("self", os.getppid())]
        return known.decode(), mine, Path(mine).stat().st_mode & 0o777, known in b"".join(seen)

    ended, _ = rank(look, LOCKSTITCH_SECRET="00" * 32)
    text, path, mode, is_seen = cloudpickle.loads(ended.result)
    assert text == SECRET.text()
    assert (mode, is_seen) == (0o600, False)
    assert not Path(path).parent.exists()


@pytest.mark.slow
def test_a_rank_is_killed_when_nobody_waits_for_it_any_more():
    def wait():
        print("here", flush=True)
        signal.pause()

    ended, _ = rank(wait, until=lambda said: said.get(timeout=60))
    assert (ended.result, ended.how) == (None, "killed by SIGKILL")


@pytest.mark.slow
def test_what_a_rank_leaves_behind_ends_with_it_and_keeps_nobody_waiting():
    def leave():
        child = os.fork()
        if not child:
            signal.pause()
        print("the last word", end="", flush=True)
        return child

    ended, said = rank(leave)
    assert said == [("stdout", "the last word")]
    assert not runs(cloudpickle.loads(ended.result))
