"""The demo learns, proves itself equal to plain PyTorch, and would admit it if it were not."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.warm import Done

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "digits"
PNG = b"\x89PNG"


def test_demo_learns_and_equals_one_process(warm_python, tmp_path):
    picture = tmp_path / "new folder" / "curve.png"
    arguments = ["--picture", str(picture), "--epochs", "5"]

    ranks = warm_python.run_ranks(DEMO / "train.py", tmp_path, 3, arguments, is_strict=False)

    assert_promises_kept(ranks[0], picture)
    assert [(each.status, each.errors) for each in ranks[1:]] == [(0, "")] * 2


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """The path of the picture, which is long, stays in one line."""
    monkeypatch.setenv("COLUMNS", "400")


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [[], ["-m", "lockstitch", "run", "-n", "3"]], ids=["alone", "launched"]
)
def test_demo_as_its_docstring_says(tmp_path, launcher):
    picture = tmp_path / "new folder" / "curve.png"
    command = [*launcher, str(DEMO / "train.py"), "--picture", str(picture), "--epochs", "5"]

    demo = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert_promises_kept(Done(demo.returncode, demo.stdout, demo.stderr), picture)


def assert_promises_kept(demo: Done, picture: Path) -> None:
    assert demo.status == 0, demo.output + demo.errors
    assert demo.output.count("✓") >= 2  # losses and parameters
    assert "Warning" not in demo.errors
    assert str(picture) in demo.output
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
