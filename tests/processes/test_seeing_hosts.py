"""A job of two hosts is one job from either of them, and from elsewhere by an address and the job's
secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.trust import Secret
from tests.chrome_format import read_trace
from tests.processes.two_hosts import ADDRESSES, TwoHosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 60
NOTHING: Mapping[str, str] = {}
CYCLE = """
import os, threading
from lockstitch import rpc
rank, lock = int(os.environ["RANK"]), threading.Lock()
def ask():
    with lock:
        return rank
with lock:  # before the other can call
    rpc.init_rpc(f"worker{rank}", world_size=2)
    rpc.rpc_sync(f"worker{1 - rank}", ask, timeout=0)
"""
LEFT_OUT = """
import threading, torch
import lockstitch.hvd as hvd
hvd.init()
if hvd.rank() == 1:
    threading.Event().wait()  # elsewhere
hvd.allreduce(torch.ones(2), name="second")
"""
TO_AND_FRO = """
import os, threading
from lockstitch import rpc
rank = int(os.environ["RANK"])
def echo(value):
    return value
rpc.init_rpc(f"worker{rank}", world_size=2)
while True:
    rpc.rpc_sync(f"worker{1 - rank}", echo, (1,))
    threading.Event().wait(0.005)
"""
AHEAD_SECONDS = 1000


IDLE = """
import os, threading
from lockstitch import rpc
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{rank}", world_size=size)
threading.Event().wait()
"""


class Job:
    """A program on each of two hosts, and commands that look at it. `beside`: how many more
    processes of it run on the first host; `clock`: the command by which those of the second one
    get a clock of their own."""

    def __init__(
        self,
        hosts: TwoHosts,
        folder: Path,
        program: str,
        beside: int = 0,
        clock: tuple[str, ...] = (),
    ) -> None:
        self.hosts = hosts
        self.folder = folder
        Secret.make().write(folder / "secret")
        self.secret = {"LOCKSTITCH_SECRET_FILE": str(folder / "secret")}
        size = str(2 + beside)
        meeting = {"WORLD_SIZE": size, "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29777"}
        places = [(0, 0), (1, 0), *((0, 1 + local) for local in range(beside))]
        self.workers: list[subprocess.Popen[str]] = [
            hosts.start(
                host,
                [*(clock if host else ()), sys.executable, "-c", program],
                {
                    **meeting, **self.secret, **self.of_host(host),
                    "RANK": str(rank), "LOCAL_RANK": str(local),
                },
            )
            for rank, (host, local) in enumerate(places)
        ]  # fmt: skip

    def of_host(self, host: int | str) -> dict[str, str]:
        """Hosts of their own have a /tmp of their own."""
        return {"LOCKSTITCH_RUNTIME_DIR": str(self.folder / f"run{host}")}

    def say(self, host: int, *words: str, **environment: str) -> tuple[int, str]:
        """What a command prints on a host, and its exit status."""
        told = environment or self.of_host(host)
        process = self.hosts.start(host, [sys.executable, "-m", "lockstitch", *words], told)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, output

    def when(
        self, words: list[str], part: str, host: int = 0, more: Mapping[str, str] = NOTHING
    ) -> str:
        """What a command prints as soon as that has a part in it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            _, output = self.say(host, *words, **{**self.of_host(host), **more})
            if part in output:
                return output
            assert time.monotonic() < deadline, output


def cards_of(job: Job, host: int) -> list[dict[str, Any]]:
    """What the processes of the job say of themselves, those that a host sees."""
    (told,) = json.loads(job.say(host, "ps", "--json")[1])
    return [each["card"] for each in told["processes"]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with TwoHosts() as hosts:
        yield lambda program, beside=0, clock=(): Job(hosts, tmp_path, program, beside, clock)


def test_a_cycle_over_two_hosts_is_named_from_both_and_from_elsewhere(
    start: Callable[..., Job],
) -> None:
    job = start(CYCLE)
    for host in range(2):
        output = job.when(["waits"], "2 workers wait for each other in a cycle", host)
        assert "on alpha)" in output
        assert "on beta)" in output
        assert output.count("serves it at <string>:6 in ask") == 2
    gateways = {each["gateway"] for each in cards_of(job, 1)}
    assert {each.rpartition(":")[0] for each in gateways} == set(ADDRESSES)
    (address,) = [each for each in gateways if each.startswith(ADDRESSES[0])]

    elsewhere = {**job.of_host("none"), **job.secret}
    status, output = job.say(1, "waits", "--address", address, **elsewhere)
    assert (status, "2 workers wait for each other in a cycle" in output) == (0, True)
    status, output = job.say(1, "status", "--address", address, **elsewhere)
    assert "worker0" in output
    assert "worker1" in output
    # Without the secret, or with another one, nothing is told.
    Secret.make().write(job.folder / "other")
    other = {"LOCKSTITCH_SECRET_FILE": str(job.folder / "other")}
    for secret, why in (({}, "takes the job's secret"), (other, "secret")):
        status, output = job.say(
            1, "status", "--address", address, **{**job.of_host("none"), **secret}
        )
        assert status == 1
        assert why in output
        assert "worker0" not in output


def test_the_rank_that_left_a_reduction_out_is_named_from_the_other_host(
    start: Callable[..., Job],
) -> None:
    job = start(LEFT_OUT)
    output = job.when(["waits"], "rank 1 is waited for by rank 0")
    assert "it has not submitted allreduce 'allreduce.second'" in output
    # A host that does not answer any more is told, and what is known of this one, too.
    os.kill(cards_of(job, 1)[1]["pid"], signal.SIGSTOP)
    output = job.when(["waits"], "of another host nothing is known: 10.213.77.2:")
    assert "rank 0" in output


def test_a_trace_and_metrics_have_the_workers_of_both_hosts_though_their_clocks_differ(
    start: Callable[..., Job],
) -> None:
    ahead = ("unshare", "--time", "--monotonic", str(AHEAD_SECONDS), "--fork", "--kill-child")
    probe = subprocess.run([*ahead, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no clock of its own can be made here: {probe.stderr.decode()}")
    job = start(TO_AND_FRO, clock=ahead)
    job.when(["status", "--json"], '"name": "worker1"')
    address = cards_of(job, 1)[0]["gateway"]
    elsewhere = {**job.of_host("none"), **job.secret}
    file = job.folder / "trace.json"
    words = ("trace", "--address", address, "--seconds", "2", "-o", str(file))
    status, output = job.say(0, *words, **elsewhere)
    assert status == 0, output

    trace = read_trace(file)
    assert [each["name"] for each in trace.about["workers"]] == ["worker0", "worker1"]
    assert trace.about["silent_workers"] == []
    ways = {(each.begin["pid"], each.end["pid"]) for each in trace.arrows if each.name == "call"}
    assert len(ways) == 2
    alpha, beta = sorted(trace.about["clocks"], key=lambda each: each["host"])
    ahead_us = alpha["offset_us"] - beta["offset_us"]
    error_us = max(alpha["error_us"], beta["error_us"])
    assert 0 < error_us < 20_000
    assert abs(ahead_us - AHEAD_SECONDS * 1e6) <= error_us

    for _ in range(2):  # the first look has calls counted
        status, output = job.say(0, "metrics", "--address", address, **elsewhere)
        assert status == 0, output
    for caller in range(2):
        counted = "lockstitch_rpc_call_seconds_count{"
        assert any(
            line.startswith(counted) and f'worker="worker{caller}"' in line
            for line in output.splitlines()
        )


def test_when_the_process_is_gone_that_answers_for_a_host_another_one_does(
    start: Callable[..., Job],
) -> None:
    job = start(IDLE, 2)
    job.when(["status"], "worker1", 0)  # of the other host, as soon as all have met
    (gateway,) = [each for each in cards_of(job, 0) if each["gateway"].startswith(ADDRESSES[0])]
    for _ in range(2):
        os.kill(gateway["pid"], signal.SIGKILL)
        output = job.when(["status", "--address", gateway["gateway"]], "worker1", 1, job.secret)
        assert gateway["names"][0] not in output
        cards = cards_of(job, 0)
        assert len({each["names"][0] for each in cards}) == len(cards)
        (gateway,) = [each for each in cards if each["gateway"] == gateway["gateway"]]


def test_while_the_process_is_stopped_that_answers_for_a_host_another_one_does(
    start: Callable[..., Job],
) -> None:
    job = start(IDLE, 2)
    job.when(["status"], "worker1", 0)  # of the other host, as soon as all have met
    (gateway,) = [each for each in cards_of(job, 0) if each["gateway"].startswith(ADDRESSES[0])]
    os.kill(gateway["pid"], signal.SIGSTOP)
    try:
        words = ["status", "--address", gateway["gateway"]]
        output = job.when(words, "worker1", 1, job.secret)
        assert "worker2" in output
        assert "stopped by a signal" in output
        # Commands of the other host know of all those of this one, too.
        assert "worker2" in job.when(["status"], "stopped by a signal", 1)
    finally:
        os.kill(gateway["pid"], signal.SIGCONT)
