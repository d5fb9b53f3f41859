"""`lockstitch run` in an allocation, with commands in the place of Slurm's that start everything on
this machine (`tests/engines/test_slurm.py` has the real ones)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 60
PROGRAM = """
import json, os
names = "RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR OMP_NUM_THREADS SLURMD_NODENAME SLURM_PROCID"
told = {name: os.environ.get(name) for name in [*names.split(), "HOROVOD_ELASTIC"]}
told["has_secret"] = os.path.exists(os.environ["LOCKSTITCH_SECRET_FILE"])
print(json.dumps(told), flush=True)
"""
TOGETHER = f"""{PROGRAM}
import pathlib, threading
folder = pathlib.Path(os.environ["LOG"]).parent
(folder / f"here-{{os.getpid()}}").touch()
while len(list(folder.glob("here-*"))) < 3:
    threading.Event().wait(0.05)
"""
SRUN = """#!/bin/sh
{ echo "$@"; env; } >> "$LOG"
while [ "$1" != --nodelist ]; do shift; done
export SLURMD_NODENAME=$2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1
shift 2
exec "$@"
"""
SQUEUE = "#!/bin/sh\necho RUNNING\n"
SCONTROL = "#!/bin/sh\necho NodeName=$4 NodeAddr=127.0.0.1\n"
ALLOCATION = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "node-of-slurm[08-09]",
    "SLURM_TASKS_PER_NODE": "2,1",
    "SLURM_JOB_CPUS_PER_NODE": "6,3",
    "SLURM_NTASKS": "3",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for name, text in (("srun", SRUN), ("squeue", SQUEUE), ("scontrol", SCONTROL)):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(text)
        command.chmod(0o755)
    bare = {name: it for name, it in os.environ.items() if name != "OMP_NUM_THREADS"}
    path = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
    return {**bare, **ALLOCATION, "PATH": path, "LOG": str(tmp_path / "log")}


def command(program: str, *options: str) -> list[str]:
    launcher = [sys.executable, "-m", "lockstitch", "run", *options]
    return [*launcher, sys.executable, "-c", program]


def told(output: str) -> list[dict[str, object]]:
    lines = (line.partition("] ")[2] for line in output.splitlines())
    return sorted(map(json.loads, lines), key=json.dumps)


def test_workers_are_steps_on_all_nodes_and_know_their_ranks(environment, tmp_path):
    done = subprocess.run(
        command(PROGRAM),
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    found = told(done.stdout)
    places = [(each["RANK"], each["LOCAL_RANK"], each["SLURMD_NODENAME"]) for each in found]
    nodes = ["node-of-slurm08", "node-of-slurm08", "node-of-slurm09"]
    assert places == list(zip("012", "010", nodes, strict=True))
    for each in found:
        assert (each["WORLD_SIZE"], each["MASTER_ADDR"]) == ("3", "127.0.0.1")
        assert (each["OMP_NUM_THREADS"], each["SLURM_PROCID"]) == ("3", None)
        assert each["has_secret"]
    log = (tmp_path / "log").read_text()
    assert log.count("--nodelist node-of-slurm08 /bin/sh") == 1  # for both workers
    assert log.count("--nodelist node-of-slurm09 /bin/sh") == 1
    assert "LOCKSTITCH_SECRET=" not in log
    assert "SLURM_NTASKS" not in log


def test_workers_of_an_elastic_job_are_steps_too(environment):
    done = subprocess.run(
        command(TOGETHER, "--min-np", "2", "-n", "3"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    found = told(done.stdout)
    assert [each["SLURMD_NODENAME"][-2:] for each in found].count("08") == 2
    for each in found:
        assert (each["HOROVOD_ELASTIC"], each["RANK"], each["SLURM_PROCID"]) == ("1", None, None)
        assert each["has_secret"]


def test_hosts_that_are_named_come_before_the_allocation(environment, tmp_path):
    program = "import os; print('RANK', os.environ['RANK'])"
    done = subprocess.run(
        command(program, "-H", "localhost:4"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout.count("RANK") == 4
    assert not (tmp_path / "log").exists()


def test_a_signal_to_all_of_a_step_reaches_the_worker_once_and_its_agent_waits(
    environment, tmp_path
):
    """As `scancel` sends it: SIGTERM to each process of the step."""
    program = (
        "import signal, os, time\n"
        "got = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: got.append(1))\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getppid()}} {{os.getpid()}} ')\n"
        "while not got: signal.pause()\n"
        "time.sleep(0.5)\n"
        "print('heard', len(got))\n"
        "raise SystemExit(143)\n"
    )
    job = subprocess.Popen(
        command(program, "-n", "1"), env=environment, stdout=subprocess.PIPE, text=True
    )
    with job:
        pids = tmp_path / "pid"
        end = time.monotonic() + SECONDS
        while not (pids.exists() and pids.read_text().endswith(" ")):
            assert time.monotonic() < end
            threading.Event().wait(0.05)
        for pid in pids.read_text().split():
            os.kill(int(pid), signal.SIGTERM)
        said, _ = job.communicate(timeout=SECONDS)
    assert "heard 1" in said
    assert job.returncode == 143
