"""Fuzzing that is guided by coverage: bytes that reach new code are kept, and changed further.

    pip install -e '.[fuzz]'
    python -m benchmarks.fuzz --guided --frames 1000000 --seconds 600

Each target (`fuzz_targets`) gets a process of its own, in which atheris (libFuzzer) watches the
branches of `lockstitch`; every second change is made by somebody who knows where frames, and JSON,
have their joints. A finding is kept as a file in the folder, and tried again by

    python -m benchmarks.guided_fuzz TARGET FILE
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

_MEMORY_MB = 2048
_LONGEST_INPUT = 4096
_LINE = re.compile(
    r"^#(?P<runs>\d+)\s+(?P<what>INITED|pulse|NEW|REDUCE|RELOAD|DONE)\s+"
    r"cov: (?P<cov>\d+) ft: (?P<ft>\d+) corp: (?P<corpus>\d+)\S* .*rss: (?P<rss>\d+)Mb",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one target: inputs tried, branches reached first and in the end, memory in MiB
    likewise, and what libFuzzer said where something was found."""

    runs: int
    branches: tuple[int, int]
    memory: tuple[int, int]
    finding: str = ""


def read(said: str, status: int) -> Outcome:
    """What libFuzzer has said, as figures."""
    lines = list(_LINE.finditer(said))
    if not lines:
        return Outcome(0, (0, 0), (0, 0), said[-4000:])
    first, last = lines[0], lines[-1]
    return Outcome(
        int(last["runs"]),
        (int(first["cov"]), int(last["cov"])),
        (int(first["rss"]), int(last["rss"])),
        said[-4000:] if status else "",
    )


def run(name: str, runs: int, seconds: float, seed: int, folder: Path) -> Outcome:
    """One target in a process of its own."""
    corpus = folder / name
    corpus.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "benchmarks.guided_fuzz", name, str(corpus)),
        *(f"-runs={runs}", f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}"),
        *(f"-rss_limit_mb={_MEMORY_MB}", f"-max_len={_LONGEST_INPUT}", "-timeout=150"),
        f"-artifact_prefix={corpus}-",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False
    )
    return read(done.stdout.decode(errors="replace"), done.returncode)


def run_all(frames: int, seconds: float, seed: int, folder: Path, names: list[str]) -> bool:
    """All targets, one after the other, each with its share; prints what came of them. True if
    nothing was found."""
    began, total, is_well = time.monotonic(), 0, True
    for place, name in enumerate(names):
        left = len(names) - place
        share = (seconds - (time.monotonic() - began)) / left
        outcome = run(name, -(-(frames - total) // left), share, seed, folder)
        total += outcome.runs
        is_well &= not outcome.finding
        (before, branches), (least, memory) = outcome.branches, outcome.memory
        print(
            f"{name:12}{outcome.runs:12,} inputs   branches {before:5} → {branches:5}   "
            f"memory {least} → {memory} MiB{'   FINDING' * bool(outcome.finding)}",
            flush=True,
        )
        if outcome.finding:
            print(outcome.finding)
    print(f"{total:,} inputs in {time.monotonic() - began:.0f} s; seed {seed}")
    return is_well


def _fuzz() -> None:
    """This process is that of one target."""
    try:
        import atheris  # noqa: PLC0415 - only who fuzzes has it
    except ImportError as error:
        raise SystemExit("atheris is missing: pip install -e '.[fuzz]'") from error
    with atheris.instrument_imports(include=["lockstitch"]):
        from benchmarks import fuzz_targets  # noqa: PLC0415 - watched from here on
    name, *rest = sys.argv[1:]
    target = fuzz_targets.targets()[name]
    for number, seed in enumerate(target.seeds):
        if rest and Path(rest[0]).is_dir():
            (Path(rest[0]) / f"seed{number}").write_bytes(seed)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        if target.change is not None and seed % 2:
            return target.change(data, random.Random(seed))[:most]
        changed: bytes = atheris.Mutate(data, most)
        return changed

    atheris.Setup([sys.argv[0], *rest], target.read, custom_mutator=mutate)
    atheris.Fuzz()


def main(arguments: argparse.Namespace) -> None:
    """`benchmarks.fuzz --guided`."""
    from benchmarks.fuzz_targets import targets  # noqa: PLC0415 - not where they are watched

    names = arguments.only or list(targets())
    folder = Path(arguments.folder)
    if not run_all(arguments.frames, arguments.seconds, arguments.seed, folder, names):
        raise SystemExit(1)


if __name__ == "__main__":
    _fuzz()
