"""Two workers in network namespaces of their own; the link between them is taken down and up. Two
ranks there that are told nothing but where to meet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NETWORKS = [f"lockstitch-{os.getpid()}-{side}" for side in "ab"]
ADDRESSES = ["10.213.77.1", "10.213.77.2"]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def networks():
    """Two namespaces and a link between them."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root, and the command `ip`")
    with ExitStack() as stack:
        for name in NETWORKS:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode()}")
            stack.callback(ip, "netns", "delete", name)
        ip(
            "-n",
            NETWORKS[0],
            "link",
            "add",
            "wire",
            "type",
            "veth",
            "peer",
            "wire",
            "netns",
            NETWORKS[1],
        )
        for name, address in zip(NETWORKS, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield NETWORKS


def start(stack: ExitStack, rank: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.processes.partition", str(rank), ADDRESSES[rank]]
    process = stack.enter_context(
        subprocess.Popen(
            ["ip", "netns", "exec", NETWORKS[rank], *command, f"tcp://{ADDRESSES[0]}:29777"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    stack.callback(process.kill)
    return process


@pytest.mark.slow
def test_a_cut_between_hosts_is_noticed_on_both_sides_and_stays_when_it_heals(networks) -> None:
    with ExitStack() as stack:
        workers = [start(stack, rank) for rank in range(2)]
        assert [each.stdout.readline() for each in workers] == ["answered\n"] * 2
        ip("-n", networks[0], "link", "set", "wire", "down")
        for rank, worker in enumerate(workers):
            line = worker.stdout.readline()
            assert line.startswith("PeerDiedError after"), line
            assert f"worker 'worker{1 - rank}' died: it has been silent for 2 s" in line
        ip("-n", networks[0], "link", "set", "wire", "up")
        for worker in workers:  # each has given the other's references back by now
            worker.stdin.write("whole\n")
            worker.stdin.flush()
            assert worker.stdout.readline().startswith("PeerDiedError after 0.")
        for worker in workers:
            worker.stdin.write("end\n")
            worker.stdin.flush()
            worker.wait(60)


REDUCTION = """
import lockstitch.hvd as hvd, torch
try:
    hvd.init()
    print(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.cross_size())
except RuntimeError as error:
    print(type(error).__name__, error)
"""
STEP = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": ADDRESSES[0],
}


def reduce_there(*of_ranks: dict[str, str]) -> list[str]:
    """What the two ranks print."""
    own = ("MASTER_", "HOROVOD_", "SLURM_", "GLOO_")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    with ExitStack() as stack:
        ranks = []
        for network, environment in zip(NETWORKS, of_ranks, strict=True):
            process = subprocess.Popen(
                ["ip", "netns", "exec", network, sys.executable, "-c", REDUCTION],
                env={**bare, "OMP_NUM_THREADS": "1", **environment},
                stdout=subprocess.PIPE,
                text=True,
            )
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        return [each.communicate(timeout=100)[0] for each in ranks]


def of_horovod(rank: int, address: str) -> dict[str, str]:
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "29778",
    }


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["Horovod", "Slurm"])
def test_ranks_of_two_hosts_need_to_know_only_where_to_meet(networks, launcher) -> None:
    assert networks == NETWORKS
    printed = reduce_there(
        *(
            of_horovod(rank, ADDRESSES[0])
            if launcher == "Horovod"
            else {**STEP, "SLURM_PROCID": str(rank)}
            for rank in range(2)
        )
    )
    assert printed == ["2.0 2\n"] * 2


@pytest.mark.slow
def test_address_that_leads_nowhere_from_the_other_host_is_told_at_once(networks) -> None:
    assert networks == NETWORKS
    for line in reduce_there(of_horovod(0, "localhost"), of_horovod(1, ADDRESSES[0])):
        assert line.startswith("CollectiveError rank 0 can be reached at tcp:127.0.0.1:"), line
        assert "HOROVOD_GLOO_RENDEZVOUS_ADDR" in line
