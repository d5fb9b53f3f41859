"""Stacks of a process looked at from outside, by py-spy: those of C and C++ too, and those of a
process that does not answer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_SECONDS: Final = 20.0
NOT_INSTALLED: Final = (
    "py-spy is not installed, which looks at the stacks of C and C++ and at processes that do not "
    "answer: pip install 'lockstitch[native]'"
)


class PySpyError(RuntimeError):
    """py-spy is not installed, or could not look at a process."""


def find_py_spy() -> str | None:
    """Returns where py-spy is; None where it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def stacks_of(pid: int, *, native: bool) -> str:
    """Returns the stacks of a process as py-spy prints them. `native`: those of C and C++ too.
    Raises `PySpyError`."""
    program = find_py_spy()
    if program is None:
        raise PySpyError(NOT_INSTALLED)
    command = [program, "dump", "--pid", str(pid), *(["--native"] if native else [])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise PySpyError(f"py-spy did not come back from process {pid}") from error
    if done.returncode:
        reason = done.stderr.strip().splitlines() or ["it does not say why"]
        raise PySpyError(
            f"py-spy cannot look at process {pid}: {reason[0]} (where a system forbids one process "
            "to look into another, as in many containers, it needs SYS_PTRACE)"
        )
    return done.stdout
