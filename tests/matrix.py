"""The core of the suite (unit, cluster, parity) on each version of torch that is supported.

    python -m tests.matrix                        all of them, with the Pythons that are here
    python -m tests.matrix --torch 2.10.0 --here  one of them, with this Python
    python -m tests.matrix --python 3.12          all that are tested with this Python
    python -m tests.matrix --torch 2.15.0 -- -k pickling   … and what pytest is told

Each gets an environment of its own in `.matrix`, with the ordinary wheel of torch and all that it
asks for, and keeps it for the next time, unless `--discard` is given; they take 5 to 8 GB each.
With `--least` it gets only what torch cannot be imported without. A table of all results is written
to `out/matrix.md` as well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = (
    # Python, torch
    ("3.10", "2.10.0"),
    ("3.11", "2.10.0"),
    ("3.11", "2.11.0"),
    ("3.11", "2.12.1"),
    ("3.10", "2.13.0"),
    ("3.12", "2.13.0"),
    ("3.13", "2.13.0"),
    ("3.14", "2.13.0"),
    ("3.11", "2.14.1"),
    ("3.11", "2.15.0"),
    ("3.14", "2.15.0"),
)
# What torch asks for and can be imported without, where there is no GPU.
UNNEEDED = {"triton", "cuda-bindings"}
CORE = ("tests/unit", "tests/cluster", "tests/parity")
# What pytest says at its end: "3 failed, 4967 passed, 262 skipped in 380.12s".
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")


@dataclass(frozen=True)
class Result:
    python: str
    torch: str
    passed: int
    failed: int
    skipped: int
    megabytes: int
    install_seconds: int
    test_seconds: int


def main() -> int:
    """The exit status: 1 if anything failed, anywhere."""
    options = parse()
    wanted = [
        (python, torch)
        for python, torch in VERSIONS
        if options.torch in (None, torch) and options.python in (None, python)
    ]
    if options.here:
        here = ".".join(map(str, sys.version_info[:2]))
        wanted = [(here, torch) for torch in ([options.torch] if options.torch else _torches())]
    results, missing = [], []
    for python, torch in wanted:
        interpreter = find_python(python)
        if interpreter is None:
            missing.append((python, torch))
            continue
        results.append(try_one(python, interpreter, torch, options))
        write_table(results, missing)
    return int(any(result.failed or not result.passed for result in results) or not results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", help="only this version")
    parser.add_argument("--python", help="only this version")
    parser.add_argument("--here", action="store_true", help="with the Python that runs this")
    parser.add_argument("--least", action="store_true", help="only what torch's import needs")
    parser.add_argument("--discard", action="store_true", help="keep no environment")
    parser.add_argument("pytest", nargs="*", help="options of pytest, behind --")
    return parser.parse_args()


def _torches() -> list[str]:
    return list(dict.fromkeys(torch for _, torch in VERSIONS))


def find_python(version: str) -> str | None:
    """One that is on the path and has `venv`, or that pyenv keeps beside this one."""
    if tuple(map(int, version.split("."))) == sys.version_info[:2]:
        return sys.executable
    beside = Path(os.path.realpath(sys.executable)).parents[2]
    kept = sorted(beside.glob(f"{version}.*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *map(str, reversed(kept))):
        if candidate is not None:
            probe = [candidate, "-c", "import sys, venv, ensurepip; print(sys.version_info[:2])"]
            done = subprocess.run(probe, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return candidate
    return None


def try_one(python: str, interpreter: str, torch: str, options: argparse.Namespace) -> Result:
    """Makes the environment where there is none, and runs the core in it."""
    kind = "-least" if options.least else ""
    environment = ROOT / ".matrix" / f"python{python}-torch{torch}{kind}"
    installed = environment / "installed.json"
    if not installed.exists():
        print(f"== installing torch {torch} for Python {python}", flush=True)
        begun = time.monotonic()
        install(environment, interpreter, torch, is_least=options.least)
        installed.write_text(json.dumps({"seconds": round(time.monotonic() - begun)}))
    print(f"== torch {torch}, Python {python}", flush=True)
    begun = time.monotonic()
    command = [environment / "bin" / "python", "-m", "pytest", "-q", "-m", "not slow"]
    # The source is this checkout's, whatever the environment has.
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.Popen(
        [*command, *CORE, *options.pytest],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    last = ""
    assert done.stdout is not None
    for line in done.stdout:
        print(line, end="", flush=True)
        last = line if _COUNT.search(line) else last
    done.wait()
    counts = {kind.rstrip("s"): int(number) for number, kind in _COUNT.findall(last)}
    result = Result(
        python,
        torch + kind,
        counts.get("passed", 0),
        counts.get("failed", 0) + counts.get("error", 0),
        counts.get("skipped", 0),
        size_of(environment),
        json.loads(installed.read_text())["seconds"],
        round(time.monotonic() - begun),
    )
    if options.discard:
        shutil.rmtree(environment)
    return result


def install(environment: Path, interpreter: str, torch: str, *, is_least: bool) -> None:
    """The ordinary wheel with all that it asks for, or with the least; of the rest, what
    `constraints.txt` says."""
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", environment], check=True)
    rest = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("torch==")
    ]
    constraints = environment / "constraints.txt"
    constraints.write_text("\n".join([*rest, f"torch=={torch}"]))
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    ours = ["-c", constraints, "-e", ".[demo,test,tls]"]
    if is_least:
        report = environment / "report.json"
        subprocess.run([*pip, "--dry-run", "--report", report, *ours], cwd=ROOT, check=True)
        found = [it["metadata"] for it in json.loads(report.read_text())["install"]]
        pinned = [f"{it['name']}=={it['version']}" for it in found if it["name"] != "lockstitch"]
        kept = [it for it in pinned if it.partition("==")[0] not in UNNEEDED]
        ours = ["--no-deps", *kept, "-e", "."]
    subprocess.run([*pip, *ours], cwd=ROOT, check=True)


def size_of(folder: Path) -> int:
    """In megabytes."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) >> 20


def write_table(results: list[Result], missing: list[tuple[str, str]]) -> None:
    lines = [
        "| Python | torch | passed | failed | skipped | environment | installed in | tests |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        "| {python} | {torch} | {passed:,} | {failed} | {skipped} | {megabytes:,} MB | "
        "{install_seconds} s | {test_seconds} s |".format(**asdict(result))
        for result in results
    ]
    lines += [
        f"| {python} | {torch} | no such Python here | | | | | |" for python, torch in missing
    ]
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    (out / "matrix.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
