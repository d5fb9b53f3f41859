"""A program may end without `shutdown`: it neither hangs nor crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rounds", [3, pytest.param(27, marks=pytest.mark.slow)])
def test_exits_while_something_is_under_way(rounds: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.processes.exits", str(rounds)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
