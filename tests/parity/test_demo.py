"""The demo learns, proves itself equal to plain PyTorch, and would admit it if it were not."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "digits"
PNG = b"\x89PNG"


def run_demo(picture: Path, *arguments: str, launcher=()) -> subprocess.CompletedProcess[str]:
    command = [*launcher, str(DEMO / "train.py"), "--picture", str(picture), *arguments]
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "COLUMNS": "200"},  # a long path of the picture stays in one line
    )


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param([], id="alone"),
        pytest.param(["-m", "lockstitch", "run", "-n", "3"], id="launched", marks=pytest.mark.slow),
    ],
)
def test_demo_learns_and_equals_one_process(tmp_path, launcher):
    picture = tmp_path / "new folder" / "curve.png"

    demo = run_demo(picture, "--epochs", "5", launcher=launcher)

    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stdout.count("✓") >= 2  # losses and parameters
    assert "Warning" not in demo.stderr
    assert str(picture) in demo.stdout
    assert picture.read_bytes().startswith(PNG)


@pytest.fixture
def demo_modules(monkeypatch):
    """The demo's own modules, which its folder on the path makes importable."""
    monkeypatch.syspath_prepend(str(DEMO))
    yield importlib.import_module("training"), importlib.import_module("report")
    for file in DEMO.glob("*.py"):
        sys.modules.pop(file.stem, None)


def a_training(training, loss: float, parameter: float, accuracy: float = 0.99):
    return training.Training(
        losses=[1.0, loss],
        accuracies=[accuracy],
        parameters=[torch.zeros(3), torch.tensor([0.0, parameter])],
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("loss", "parameter", "is_equal"),
    [(0.5, 0.5, True), (0.5 + 1e-10, 0.5, True), (0.5 + 1e-8, 0.5, False), (0.5, 0.6, False)],
)
def test_demo_fails_when_the_trainings_differ(demo_modules, loss, parameter, is_equal):
    training, report = demo_modules
    one, other = a_training(training, 0.5, 0.5), a_training(training, loss, parameter)

    difference = training.Difference.between(one, other)
    promises_kept = report.Report().show_comparison(one, other, difference, Path("curve.png"))

    assert promises_kept == is_equal


def test_demo_fails_when_it_has_not_learned_enough(demo_modules, capsys):
    training, report = demo_modules
    one, other = (a_training(training, 0.5, 0.5, accuracy=0.94) for _ in range(2))

    difference = training.Difference.between(one, other)
    promises_kept = report.Report().show_comparison(one, other, difference, Path("curve.png"))

    assert not promises_kept
    assert "fewer than 95.0 % are read correctly" in capsys.readouterr().out
