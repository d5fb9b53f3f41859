"""Two workers in network namespaces of their own; the link between them is taken down and up."""

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
