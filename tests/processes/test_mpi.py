"""Ranks that MPI's own command starts find each other by what it has set, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lockstitch

PROGRAM = """
import torch
import lockstitch.hvd as hvd

hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank()]), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_size()} here: {total.item()}\\n", end="")
hvd.shutdown()
"""

# What Open MPI asks for on a small machine, or as root.
PERMISSIONS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


SHELL = ("sh", "-c", '"$@"; true', "-")


@pytest.mark.parametrize(
    ("command", "launcher"),
    [("mpirun.openmpi", ()), ("mpirun.mpich", ()), ("mpirun.mpich", SHELL)],
    ids=["Open MPI", "MPICH", "MPICH and a shell"],
)
def test_ranks_of_one_host_meet(command, launcher, tmp_path):
    path = shutil.which(command)
    if path is None:
        pytest.skip(f"needs {command}")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    source = str(Path(lockstitch.__file__).parents[1])
    environment = {**os.environ, **PERMISSIONS, "PYTHONPATH": source}
    done = subprocess.run(
        [path, "-n", "2", *launcher, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=environment,
    )
    lines = sorted(line for line in done.stdout.splitlines() if line)
    assert lines == [f"rank {rank} of 2, 2 here: 1" for rank in range(2)], done.stderr
