"""Horovod's interface with tensors of a GPU: two real ranks that share one, and a single rank."""

from __future__ import annotations

import json
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


@pytest.fixture(scope="module", params=[1, 2])
def outcomes(request, tmp_path_factory):
    """What each rank says of each check."""
    folder = tmp_path_factory.mktemp("outcomes")
    size = request.param
    command = [sys.executable, "-m", "lockstitch", "run", "-n", str(size), str(PROGRAM)]
    told = subprocess.run(
        [*command, "cuda:0", str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    files = [folder / f"{rank}.json" for rank in range(size)]
    if not all(file.exists() for file in files):
        return [dict.fromkeys(CHECKS, told.stdout + told.stderr)]
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("name", CHECKS)
def test_results_are_those_of_the_cpu(outcomes, name):
    told = [each[name] for each in outcomes]
    assert told == ["ok"] * len(told), "\n".join(told)
