"""Programs on a Slurm of two nodes: by `srun` as they are, and by `lockstitch run`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstitch.trust import Secret
from tests.engines.slurm import SlurmCluster, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
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
GOES_ON = """
import os, sys, time, torch
import lockstitch.hvd as hvd

hvd.init()
state = hvd.elastic.TorchState(step=0)

@hvd.elastic.run
def train(state):
    while not os.path.exists(sys.argv[1]):
        hvd.allreduce(torch.ones(1))
        state.step += 1
        if state.step % 20 == 0:
            node, pid = os.environ["SLURMD_NODENAME"], os.getpid()
            print(f"rank {hvd.rank()} of {hvd.size()} on {node} is {pid}", flush=True)
        state.commit()
        time.sleep(0.05)

train(state)
print("done", hvd.rank(), hvd.size(), flush=True)
"""
REDUCES = """
import torch
import lockstitch.hvd as hvd

hvd.init()
hvd.barrier()
print("reduces", hvd.rank(), flush=True)
while True:
    hvd.allreduce(torch.ones(1))
"""
ENDS_WELL = """
import os, sys, time, torch
import lockstitch.hvd as hvd

hvd.init()
print("trains", hvd.rank(), flush=True)
try:
    while True:
        time.sleep(0.1)
except SystemExit as end:
    with open(f"{sys.argv[1]}-{hvd.rank()}", "w") as checkpoint:
        checkpoint.write(str(end.code))
    raise
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


@pytest.fixture(autouse=True)
def whole(cluster: SlurmCluster) -> Iterator[None]:
    """A test that fails in a cut leaves none to the next."""
    yield
    cluster.heal()


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


def test_srun_on_one_node_needs_no_secret(cluster, program):
    done = cluster.run(["srun", "-N1", "-n2", "-w", "beta", sys.executable, program])
    assert done.returncode == 0, done.stderr
    assert results(done.stdout) == {
        "hvd 0 2 0 beta 1.0",
        "hvd 1 2 1 beta 1.0",
        "rpc w0 1.0",
        "rpc w1 2.0",
    }


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


def test_an_elastic_job_outlives_a_worker_a_step_and_a_node(cluster):
    path, stop, said = (cluster.folder / name for name in ("goes_on.py", "stop", "elastic.out"))
    path.write_text(GOES_ON)
    options = ["-n", "3", "--min-np", "1", str(path), str(stop)]
    with cluster.running(["salloc", "-N2", "-n3", "--no-kill", *RUN, *options], said) as job:

        def wait_for(pattern: str, after: int = 0) -> re.Match[str]:
            wait_until(lambda: re.search(pattern, said.read_text()[after:]) is not None)
            return re.search(pattern, said.read_text()[after:])

        on_beta = r"rank 2 of 3 on beta is (\d+)"
        victim = wait_for(on_beta)[1]
        now = len(said.read_text())
        os.kill(int(victim), signal.SIGKILL)
        wait_for("worker 2 has ended: killed by SIGKILL on host beta", now)
        wait_for(on_beta, now)

        now = len(said.read_text())
        steps = cluster.said(["squeue", "--steps", "--noheader", "--format=%i %N"])
        cluster.said(["scancel", re.search(r"(\S+) beta", steps)[1]])
        wait_for("worker 3 has ended: .* on host beta", now)
        wait_for(on_beta, now)

        now = len(said.read_text())
        cluster.cut()
        wait_for("worker 4 on host beta is ended: it has been silent", now)
        wait_for(r"rank 1 of 2 on alpha", now)
        stop.touch()
        assert job.wait(60) == 0, said.read_text()
        assert "done 0 2" in said.read_text()
        cluster.heal()


def test_a_fixed_job_ends_with_a_node_and_names_it(cluster):
    path, said = cluster.folder / "reduces.py", cluster.folder / "fixed.out"
    path.write_text(REDUCES)
    with cluster.running(["salloc", "-N2", "-n2", *RUN, str(path)], said) as job:
        wait_until(lambda: said.read_text().count("reduces") == 2)
        cluster.cut()
        try:
            assert job.wait(40) == 1
        finally:
            cluster.heal()
    # The launcher may know it sooner than rank 0, or later.
    lost = "its agent is lost: it", "rank 1 died, or its connection broke (it"
    words = [f"{each} has been silent for 10 s" for each in lost]
    assert any(each in said.read_text() for each in words), said.read_text()
    assert re.search(r"silent for 10 s,? on host beta", said.read_text())


def test_the_secret_is_in_no_command_no_variable_and_no_log(cluster, tmp_path):
    path, seen, said = tmp_path / "secret.py", tmp_path / "seen", tmp_path / "said"
    path.write_text(
        "import os, pathlib, sys, time\n"
        "secret = pathlib.Path(os.environ['LOCKSTITCH_SECRET_FILE']).read_text()\n"
        "pathlib.Path(sys.argv[1]).write_text(secret.strip())\n"
        "time.sleep(600)\n"
    )
    with cluster.running(["salloc", "-N1", "-n1", *RUN, str(path), str(seen)], said) as job:
        wait_until(lambda: seen.exists() and bool(seen.read_text()))
        secret = seen.read_text().encode()
        clients = [folder for folder in Path("/proc").glob("[0-9]*") if _name_of(folder) == "srun"]
        assert clients
        for folder in clients:
            assert secret not in (folder / "cmdline").read_bytes()
            assert secret not in (folder / "environ").read_bytes()
        for kept in filter(Path.is_file, cluster.folder.rglob("*")):
            assert secret not in kept.read_bytes(), kept
        for asked in ("job", "step", "node"):
            assert secret.decode() not in cluster.said(["scontrol", "--details", "show", asked])
        cluster.said(["scancel", "--user=root"])
        job.wait(60)


def _name_of(folder: Path) -> str:
    try:
        return (folder / "comm").read_text().strip()
    except OSError:
        return ""


def test_workers_of_a_cancelled_job_end_in_good_order(cluster, tmp_path):
    path, said = tmp_path / "ends.py", tmp_path / "said"
    path.write_text(ENDS_WELL)
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n{' '.join(RUN)} {path} {tmp_path}/saved\n")
    job = cluster.submit("-N2", "-n2", "-o", said, script, folder=tmp_path)
    wait_until(lambda: said.exists() and said.read_text().count("trains") == 2)
    cluster.said(["scancel", job])
    saved = [tmp_path / f"saved-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(each.exists() and each.read_text() == "143" for each in saved))


def test_the_example_ends_in_a_checkpoint_is_requeued_and_goes_on_from_there(cluster, tmp_path):
    for name in ("slurm.sbatch", "slurm_training.py"):
        shutil.copy(EXAMPLES / name, tmp_path)

    whole = tmp_path / "whole"
    training = [*RUN, "-n", "1", "-H", "localhost", str(tmp_path / "slurm_training.py")]
    epochs = "60"
    uninterrupted = cluster.said([*training, str(whole), epochs])
    norm = re.search(r"norm (\S+)", uninterrupted)[1]

    said = tmp_path / "said"
    here = f"PATH={os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    options = ("--ntasks-per-node=1", "-o", said, f"--export=ALL,{here}")
    job = cluster.submit(*options, "slurm.sbatch", epochs, folder=tmp_path)
    checkpoint = tmp_path / f"digits-{job}.pt"
    wait_until(lambda: said.exists() and "epoch 2" in said.read_text())
    cluster.said(["scancel", "--batch", "--signal=TERM", job])  # as --signal=B:TERM@60 does
    wait_until(checkpoint.exists)
    state = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    wait_until(lambda: cluster.said(state).strip() == "PENDING")
    assert re.search(r"saved after step \d+, as told", said.read_text())
    # In the same second Slurm takes it for the one that has just ended ("credential revoked").
    cluster.said(["scontrol", "update", f"JobId={job}", "StartTime=now+2"])
    wait_until(lambda: "norm" in said.read_text(), 100)
    assert re.search(r"goes on at step \d+ with 2 ranks", said.read_text())
    assert abs(float(re.search(r"norm (\S+)", said.read_text())[1]) - float(norm)) < 1e-3
