"""Horovod's interface with tensors of a GPU: two real ranks that share one, and a single rank, on
the device itself and by NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.hvd_program import CHECKS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROGRAM = Path(__file__).with_name("hvd_program.py")


def run(folder, size, operations, *names):
    """What each rank says of each check, and all that they print."""
    command = [sys.executable, "-m", "lockstitch", "run", "-n", str(size), str(PROGRAM)]
    told = subprocess.run(
        [*command, "cuda:0", str(folder), *names],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "HOROVOD_GPU_OPERATIONS": operations},
    )
    printed = told.stdout + told.stderr
    files = [folder / f"{rank}.json" for rank in range(size)]
    if not all(file.exists() for file in files):
        return [dict.fromkeys(CHECKS, printed)]
    return [json.loads(file.read_text()) for file in files]


ROUTES = {(1, ""): "device", (1, "NCCL"): "nccl", (2, ""): "host"}


@pytest.fixture(scope="module", params=ROUTES, ids=str)
def outcomes(request, tmp_path_factory):
    size, operations = request.param
    if operations == "NCCL" and not torch.distributed.is_nccl_available():
        pytest.skip("needs a torch with NCCL")
    told = run(tmp_path_factory.mktemp("outcomes"), size, operations)
    assert [each.get("route") for each in told] == [ROUTES[request.param]] * size, told
    return told


@pytest.mark.parametrize("name", CHECKS)
def test_results_are_those_of_the_cpu(outcomes, name):
    told = [each[name] for each in outcomes]
    assert told == ["ok"] * len(told), "\n".join(told)


def test_nccl_is_refused_to_ranks_that_share_a_gpu(tmp_path):
    told = run(tmp_path, 2, "NCCL", "gradients_pass_through")
    for each in told:
        assert "ranks 0 and 1 use the same GPU" in each["gradients_pass_through"]
