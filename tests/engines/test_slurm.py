"""Programs on a Slurm of two nodes: by `srun` as they are, and by `lockstitch run`."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from lockstitch.trust import Secret
from tests.engines.slurm import SlurmCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RUN = [sys.executable, "-m", "lockstitch", "run"]
BOTH_FACES = """
import os, torch
import lockstitch.hvd as hvd
from lockstitch import rpc

hvd.init()
rank, size = hvd.rank(), hvd.size()
total = hvd.allreduce(torch.full((1,), float(rank)), op=hvd.Sum).item()
print("hvd", rank, size, hvd.local_rank(), os.environ["SLURMD_NODENAME"], total, flush=True)
hvd.shutdown()
rpc.init_rpc("w{rank}", world_size=size)
other = (rank + 1) % size
called = rpc.rpc_sync(f"w{other}", torch.add, (torch.ones(1), rank)).item()
print("rpc", rpc.get_worker_info().name, called, flush=True)
rpc.shutdown()
"""
FOUND = {
    "hvd 0 3 0 alpha 3.0",
    "hvd 1 3 1 alpha 3.0",
    "hvd 2 3 0 beta 3.0",
    "rpc w0 1.0",
    "rpc w1 2.0",
    "rpc w2 3.0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def program(cluster: SlurmCluster) -> str:
    path = cluster.folder / "train.py"
    path.write_text(BOTH_FACES)
    return str(path)


def results(said: str) -> set[str]:
    """What the workers print, without the mark of the launcher."""
    return set(re.findall(r"^(?:\[w\d+\] )?((?:hvd|rpc) .*)$", said, re.MULTILINE))


def test_srun_runs_ranks_and_workers_of_rpc_on_two_nodes_as_they_are(cluster, program):
    Secret.make().write(cluster.folder / "secret")
    named = {"LOCKSTITCH_SECRET_FILE": f"{cluster.folder}/secret"}
    done = cluster.run(["srun", "-N2", "-n3", sys.executable, program], **named)
    assert done.returncode == 0, done.stderr
    assert results(done.stdout) == FOUND


def test_lockstitch_run_starts_on_all_nodes_of_the_allocation(cluster, program):
    done = cluster.run(["salloc", "-N2", "-n3", *RUN, program])
    assert done.returncode == 0, done.stderr
    assert results(done.stdout) == FOUND


def test_what_cannot_be_is_refused_in_words(cluster, program):
    many = cluster.run(["salloc", "-N2", "-n3", *RUN, "-n", "5", program])
    assert many.returncode == 2
    assert "5 workers do not fit into the 3 tasks of allocation" in many.stderr
    assert "(alpha:2,beta:1)" in many.stderr

    job = re.search(r"allocation (\d+)", many.stderr)[1]
    told = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "alpha,beta", "SLURM_TASKS_PER_NODE": "2,1"}
    ended = cluster.run([*RUN, program], **told)
    assert ended.returncode == 2
    assert f"allocation {job} of Slurm (alpha:2,beta:1) has ended" in ended.stderr

    elsewhere = {"PATH": os.path.dirname(sys.executable)}
    without = cluster.run(["salloc", "-N2", "-n3", "env", *_pairs(elsewhere), *RUN, program])
    assert without.returncode == 2
    assert "alpha has no command 'srun' to start workers on alpha by" in without.stderr


def _pairs(variables: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]
