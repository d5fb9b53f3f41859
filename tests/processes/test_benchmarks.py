"""The benchmarks run, in their smallest form: a case of each world, and one that hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_benchmarks(folder: Path, *arguments: str) -> tuple[dict[str, dict], str]:
    """The rows by name, and what was printed."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--out", str(folder), *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "COLUMNS": "150"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "benchmarks.json").read_text())
    return {row["name"]: row for row in report["rows"]}, done.stdout


@pytest.mark.timeout(300)
def test_a_case_is_measured_on_both_sides_and_beside_the_limit(tmp_path) -> None:
    rows, printed = run_benchmarks(tmp_path, "--only", "no-op rpc_syn?")
    (row,) = rows.values()
    for side in ("ours", "other", "limit"):
        assert row[side]["value"] > 0
        assert row[side]["samples"] > 2
        first, third = row[side]["quartiles"]
        assert first <= row[side]["value"] <= third
    assert row["ratio"] == row["ours"]["value"] / row["other"]["value"]
    assert "no-op rpc_sync" in printed
    assert (tmp_path / "ratios.svg").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_who_hangs_is_reported_and_the_next_case_runs(tmp_path) -> None:
    rows, _ = run_benchmarks(tmp_path, "--only", "backward")
    unused = rows["sent, but unused"]
    assert unused["ours"]["value"] > 0
    assert unused["other"]["note"] == "hangs"
    assert "no answer within" in unused["other"]["error"]
    later = rows["backward over 8 hops"]
    assert later["other"]["value"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_worlds_grow_and_programs_run(tmp_path) -> None:
    rows, _ = run_benchmarks(tmp_path, "--only", "growth")
    assert rows["4 processes"]["ours"]["value"] > 0
    rows, _ = run_benchmarks(tmp_path, "--only", "whole programs*")
    assert all(row["ours"]["value"] > 0 for row in rows.values())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_workers_say_is_counted_alike_in_processes_and_in_simulation(tmp_path) -> None:
    found: dict[str, dict[float, float]] = {}
    for kind in ("counted", "simulated"):
        run_benchmarks(tmp_path, "--only", f"{kind}*")
        for row in json.loads((tmp_path / "benchmarks.json").read_text())["rows"]:
            assert not row["ours"]["error"]
            found.setdefault(row["section"], {})[row["x"]] = row["ours"]["value"]
    for what in ("messages", "bytes"):
        for which in ("call", "backward pass"):
            title = f"{what} of a {which}"
            (cost,) = {*found[f"counted: {title}"].values()}  # the same for each size
            assert {*found[f"simulated: {title}"].values()} == {cost}
    for kind, sizes in (("counted", (2, 4)), ("simulated", (2, 8, 32))):
        assert found[f"{kind}: messages of finding all others"] == dict.fromkeys(sizes, 0)
        requests = found[f"{kind}: requests of a start to the store"]
        assert requests == {size: 8 * size for size in sizes}
        for size, messages in found[f"{kind}: messages of a shutdown"].items():
            assert 8 * (size - 1) < messages <= 20 * (size - 1)
