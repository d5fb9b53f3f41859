"""What programs on two hosts notice when the wire between them swallows everything, or a process
stands still, and how soon."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from lockstitch.trust import Secret
from tests.processes.three_hosts import ADDRESSES as THREE_ADDRESSES
from tests.processes.three_hosts import ThreeHosts
from tests.processes.two_hosts import ADDRESSES, TwoHosts, next_line

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

REDUCTIONS = """
import os, time, torch
import lockstitch.hvd as hvd
hvd.init()
print("began", os.getpid())
try:
    while True:
        hvd.allreduce(torch.ones(1000), op=hvd.Sum)
        time.sleep(0.05)
except RuntimeError as error:
    print(time.monotonic(), type(error).__name__, error)
hvd.shutdown()
"""
LAZY = "from lockstitch.collectives.c10d import group_operations as it; it.MOST_CONNECTED = 1"
BOUND = 2.5
NOTICED_SECONDS = 3.0
"""What is promised for that bound; machines that are busy with other tests get as much again."""


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with TwoHosts() as hosts:
        yield hosts


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    Secret.make().write(tmp_path / "secret")
    secret = {"LOCKSTITCH_SECRET_FILE": str(tmp_path / "secret")}
    return {**secret, "LOCKSTITCH_HEARTBEAT_TIMEOUT": str(BOUND)}


def partitioned(hosts: TwoHosts, rank: int) -> subprocess.Popen[str]:
    place = f"tcp://{ADDRESSES[0]}:29777"
    program = ["-m", "tests.processes.partition", str(rank), ADDRESSES[rank], place]
    return hosts.start(rank, [sys.executable, *program], {})


def test_a_cut_between_hosts_is_noticed_on_both_sides_and_stays_when_it_heals(hosts) -> None:
    workers = [partitioned(hosts, rank) for rank in range(2)]
    assert [next_line(each) for each in workers] == ["answered\n"] * 2
    hosts.cut()
    for rank, worker in enumerate(workers):
        line = next_line(worker)
        assert line.startswith("PeerDiedError after"), line
        assert f"worker 'worker{1 - rank}' died: it has been silent for 2 s, on host " in line
    hosts.heal()
    for worker in workers:  # each has given the other's references back by now
        worker.stdin.write("whole\n")
        worker.stdin.flush()
        assert next_line(worker).startswith("PeerDiedError after 0.")
    for worker in workers:
        worker.stdin.write("end\n")
        worker.stdin.flush()
        worker.wait(60)


def reducing(
    hosts: TwoHosts, environment: dict[str, str], program: str = REDUCTIONS
) -> list[subprocess.Popen[str]]:
    """Two ranks of each host, in the midst of their work."""
    ranks = []
    for rank in range(4):
        told = {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "alpha"}
        told["MASTER_PORT"] = "29779"
        ranks.append(hosts.python(rank // 2, program, {**told, **environment}))
    return ranks


def first_line(process: subprocess.Popen[str], beginning: str) -> str:
    line = ""
    while not line.startswith(beginning):
        line = process.stdout.readline()
        assert line, "it has ended"
    return line


def test_a_host_that_is_cut_off_ends_reductions_on_both_sides(hosts, environment) -> None:
    ranks = reducing(hosts, environment)
    for each in ranks:
        first_line(each, "began")
    began = time.monotonic()
    hosts.cut()
    for rank, each in enumerate(ranks):
        noticed, kind, said = each.communicate(timeout=60)[0].splitlines()[-1].split(" ", 2)
        assert kind == "RankLostError"
        assert float(noticed) - began < 2 * NOTICED_SECONDS
        assert ("on host beta" if rank < 2 else "on host alpha") in said, said


WAITING = """
import threading, time, lockstitch.hvd as hvd
threading.Timer(1.0, print, ["began"]).start()
try:
    hvd.init()
except RuntimeError as error:
    print(time.monotonic(), type(error).__name__, error)
"""


def test_who_waits_for_others_to_come_notices_that_the_store_is_cut_off(hosts, environment) -> None:
    ranks = []
    for rank in range(2):  # of three
        told = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": ADDRESSES[0]}
        told["MASTER_PORT"] = "29781"
        ranks.append(hosts.python(rank, WAITING, {**told, **environment}))
    for each in ranks:
        first_line(each, "began")
    began = time.monotonic()
    hosts.cut()
    said = ranks[1].communicate(timeout=60)[0]  # torch says much, too
    told = re.search(r"^(\d+\.\d+) DistNetworkError (.*)$", said, re.MULTILINE)
    assert told is not None, said
    assert float(told[1]) - began < 2 * NOTICED_SECONDS
    assert "the store where the ranks meet can be reached no more from host beta" in told[2]


def test_hosts_between_which_long_packets_are_lost_are_named(hosts, environment) -> None:
    program = REDUCTIONS.replace("allreduce(torch.ones(1000), op=hvd.Sum)", "alltoall(LARGE)")
    program = program.replace("hvd.init()", "hvd.init(); LARGE = torch.ones(4000)")
    ranks = reducing(hosts, environment, program)
    for each in ranks:
        first_line(each, "began")
    began = time.monotonic()
    for network in hosts._networks:
        longer = ("-m", "length", "--length", "200:65535")
        hosts.rule(network, "-A", "INPUT", "-i", "wire", *longer)
    for each in ranks:
        noticed, _, said = each.communicate(timeout=60)[0].splitlines()[-1].split(" ", 2)
        # What one says who knows may be too long for the wire, of which the end is told then.
        assert re.search("nothing goes to or comes from rank|its connection broke", said), said
        assert re.search("on host (alpha|beta)", said), said
        assert float(noticed) - began < 2 * NOTICED_SECONDS


def test_a_rank_that_stands_still_ends_reductions_everywhere_else(hosts, environment) -> None:
    ranks = reducing(hosts, environment)
    pids = [int(first_line(each, "began").split()[1]) for each in ranks]
    began = time.monotonic()
    os.kill(pids[3], signal.SIGSTOP)
    for each in ranks[:3]:
        noticed, kind, said = each.communicate(timeout=60)[0].splitlines()[-1].split(" ", 2)
        assert kind == "RankLostError"
        assert float(noticed) - began < 2 * NOTICED_SECONDS
        assert said.startswith("rank 3 died, or its connection broke (it has been silent for 2.5 s")
    os.kill(pids[3], signal.SIGKILL)


ELASTIC = """
import os, sys, time, torch
import lockstitch.hvd as hvd
from lockstitch.hvd import elastic
hvd.init()
state = elastic.TorchState(step=0)

@elastic.run
def train(state):
    print(f"world {time.monotonic()} of {hvd.size()}", flush=True)
    while state.step < 10**6:
        hvd.allreduce(torch.ones(10), op=hvd.Sum)
        state.step += 1
        state.commit()
        time.sleep(0.05)
        if os.path.exists(sys.argv[1]):
            return
train(state)
"""


def test_the_launcher_makes_a_new_world_of_those_that_a_cut_leaves(
    hosts, environment, tmp_path
) -> None:
    program, end = tmp_path / "train.py", tmp_path / "end"
    program.write_text(ELASTIC)
    # Starts what it is told to on the other host, as ssh does; no network is needed for that.
    shell = tmp_path / "shell"
    there = " ".join(map(quoted, hosts.command(1, [])))
    without = "unset LOCKSTITCH_SECRET_FILE"
    shell.write_text(f'#!/bin/sh\nshift\n{without}\nexec {there} "$@"\n')
    shell.chmod(0o755)
    command = [sys.executable, "-m", "lockstitch", "run", "-n", "4", "--min-np", "2"]
    command += ["-H", "alpha:2,beta:2", "--remote-shell", str(shell), str(program), str(end)]
    launcher = hosts.start(0, command, environment)
    worlds = [first_world(launcher) for _ in range(4)]
    assert {size for _, size in worlds} == {4}
    began = time.monotonic()
    hosts.cut()
    again = [first_world(launcher) for _ in range(2)]
    assert {size for _, size in again} == {2}
    assert max(at for at, _ in again) - began < 15.0
    end.touch()
    said = launcher.communicate(timeout=90)[0]
    assert launcher.returncode == 0, said


def quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def first_world(launcher: subprocess.Popen[str]) -> tuple[float, int]:
    """When the next rank says that it is in a world, and of how many ranks."""
    line = ""
    while " world " not in line or " of " not in line:
        line = launcher.stdout.readline()
        assert line, "it has ended"
    _, _, rest = line.partition("world ")
    at, _, size = rest.split()
    return float(at), int(size)


@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_two_hosts_that_are_cut_from_each_other_only_are_named(
    environment: dict[str, str], ranks_per_host: int
) -> None:
    program = REDUCTIONS.replace("1000", "1_000_000")
    program = program.replace("hvd.init()", "hvd.init(); hvd.allreduce(torch.ones(1_000_000))")
    told_by = told_of_a_cut_between_two(environment, program, ranks_per_host)
    for said in told_by:
        assert "nothing goes to or comes from rank" in said, told_by
        assert "on host beta" in said or "on host gamma" in said, told_by


@pytest.mark.parametrize(
    "operation",
    [
        "allgather(torch.ones(100), name='x')",
        "broadcast(torch.ones(100), 1)",
        "alltoall(torch.ones(9))",
    ],
    ids=["gather", "broadcast", "alltoall"],
)
def test_such_a_cut_ends_whatever_ranks_of_a_large_set_do_together(
    environment: dict[str, str], operation: str
) -> None:
    program = REDUCTIONS.replace("allreduce(torch.ones(1000), op=hvd.Sum)", operation)
    program = program.replace("hvd.init()", f"{LAZY}; hvd.init(); hvd.{operation}")
    for said in told_of_a_cut_between_two(environment, program, 1):
        assert "Connection timed out" in said


NEW_CONNECTIONS = """
import sys, time, torch
import lockstitch.hvd as hvd
{prepare}
hvd.init()
print("began")
sys.stdin.readline()
try:
    {operation}
    hvd.allreduce(torch.ones(1000))
except RuntimeError as error:
    print(time.monotonic(), type(error).__name__, error)
hvd.shutdown()
"""


@pytest.mark.parametrize(
    ("prepare", "operation", "most_seconds"),
    [
        ("", "hvd.add_process_set([1, 2])", 2 * NOTICED_SECONDS),
        (LAZY, "hvd.allreduce(torch.ones(1_000_000))", 2 * NOTICED_SECONDS),
        # Gloo calls four times, and each time the system waits for a second at least.
        (LAZY, "hvd.allgather(torch.ones(100), name='x')", 3 * NOTICED_SECONDS),
    ],
    ids=["process set", "chunks", "gather"],
)
def test_connection_that_is_still_to_be_made_to_a_host_that_is_cut_off_is_given_up(
    environment: dict[str, str], prepare: str, operation: str, most_seconds: float
) -> None:
    program = NEW_CONNECTIONS.format(prepare=prepare, operation=operation)
    with ThreeHosts() as hosts:
        ranks = started_on_three(hosts, environment, program, 1)
        hosts.cut_between(1, 2)
        began = time.monotonic()
        for each in ranks:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        for each in ranks:
            lines = each.communicate(timeout=100)[0].splitlines()
            noticed, _, kind_and_words = next(it for it in lines if "Error" in it[:40]).partition(
                " "
            )
            assert float(noticed) - began < most_seconds, kind_and_words
            assert each.returncode == 0, lines


def told_of_a_cut_between_two(
    environment: dict[str, str], program: str, ranks_per_host: int
) -> list[str]:
    """What the ranks of three hosts say of a cut between the second and the third, in time."""
    with ThreeHosts() as hosts:
        ranks = started_on_three(hosts, environment, program, ranks_per_host)
        began = time.monotonic()
        hosts.cut_between(1, 2)
        told_by = []
        for each in ranks:
            noticed, kind, said = each.communicate(timeout=60)[0].splitlines()[-1].split(" ", 2)
            assert kind in {"RankLostError", "HorovodInternalError", "CollectiveError"}, said
            assert float(noticed) - began < 2 * NOTICED_SECONDS, said
            told_by.append(said)
        return told_by


def started_on_three(
    hosts: ThreeHosts, environment: dict[str, str], program: str, ranks_per_host: int
) -> list[subprocess.Popen[str]]:
    """The ranks of three hosts, when all have begun."""
    ranks = []
    for rank in range(3 * ranks_per_host):
        told = {"RANK": str(rank), "WORLD_SIZE": str(3 * ranks_per_host)}
        told |= {"MASTER_ADDR": THREE_ADDRESSES[0], "MASTER_PORT": "29779", **environment}
        ranks.append(hosts.python(rank // ranks_per_host, program, told))
    for each in ranks:
        first_line(each, "began")
    return ranks
