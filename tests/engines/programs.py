"""Programs that run on an engine, each a process of its own, so that nothing of it stays in the
test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 280


def run(folder: Path, text: str, seconds: float = SECONDS) -> str:
    """What a program writes to stdout; fails where it does not end well. Whatever it has started
    ends with it."""
    path = folder / "program.py"
    path.write_text(text)
    process = subprocess.Popen(
        [sys.executable, str(path)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"not done within {seconds} s\n{out}\n{err}") from None
    assert process.returncode == 0, f"{out}\n{err}"
    return out
