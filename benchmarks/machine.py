"""What the figures were taken on, and of what."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

import lockstitch

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Machine:
    """Facts that stand beside every figure."""

    system: str
    processor: str
    cpus: int
    memory_gb: float
    load_before: float
    python: str
    torch: str
    lockstitch: str
    commit: str

    @classmethod
    def take(cls) -> Machine:
        """As of now; the load is that before the benchmarks add their own."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(
            f"{platform.system()} {platform.release()}",
            _processor(),
            os.cpu_count() or 0,
            round(pages / 2**30, 1),
            round(os.getloadavg()[0], 2),
            platform.python_version(),
            str(torch.__version__),
            lockstitch.__version__,
            _commit(),
        )

    def __str__(self) -> str:
        return (
            f"{self.system} · {self.cpus} × {self.processor} · {self.memory_gb:g} GB · "
            f"load before {self.load_before:g} · Python {self.python} · torch {self.torch} · "
            f"lockstitch {self.lockstitch} at {self.commit}"
        )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "no commit"
    return done.stdout.strip() or "no commit"
