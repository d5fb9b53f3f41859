"""Steps of a training: kept, written, told."""

from __future__ import annotations

import csv
import os
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch import observe
from lockstitch.attach.sources import SOURCES
from lockstitch.observe import steps as module
from lockstitch.observe.steps import STEPS, Steps, open_curves

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    for name in (module.CURVES, module.TENSORBOARD):
        monkeypatch.delenv(name, raising=False)
    made = Steps()
    yield made
    made.close()
    SOURCES.step = STEPS.report


def test_the_last_step_is_told_with_its_values(steps: Steps) -> None:
    assert steps.report() is None
    steps.note(None, {"loss": 0.5})
    steps.note(None, {"loss": torch.tensor(0.25, requires_grad=True)})
    told = steps.report()
    assert told is not None
    assert (told.number, told.values) == (2, (("loss", 0.25),))
    assert told.per_second >= 0
    steps.note(100, {})
    assert str(steps) == "<Steps · 100>"


@pytest.mark.parametrize("value", ["high", None, torch.ones(2)])
def test_what_is_no_number_is_refused_and_nothing_is_noted(steps: Steps, value: object) -> None:
    with pytest.raises(TypeError, match="loss of a step is a number, not"):
        steps.note(None, {"loss": value})
    assert steps.report() is None


def test_values_are_written_as_csv_and_a_later_process_goes_on_with_the_file(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(module.CURVES, str(tmp_path / "curves"))
    monkeypatch.setenv("RANK", "3")
    steps.note(None, {"loss": 0.5, "accuracy": 1})
    steps.close()
    again = Steps()
    again.note(7, {"loss": 0.1})
    again.close()
    with (tmp_path / "curves" / "rank.3.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["name"], float(row["value"])) for row in rows] == [
        ("1", "loss", 0.5),
        ("1", "accuracy", 1.0),
        ("7", "loss", 0.1),
    ]


def test_values_go_to_tensorboard(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[tuple[object, ...]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            added.append((folder,))

        def add_scalar(self, *scalar: object) -> None:
            added.append(scalar[:3])

        def close(self) -> None:
            added.append(("closed",))

    class Package:
        SummaryWriter = Writer

    monkeypatch.setattr(module, "import_module", lambda _name: Package)
    monkeypatch.setenv(module.TENSORBOARD, str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    steps.note(4, {"loss": 0.5})
    steps.close()
    assert added == [(str(tmp_path / "rank.0"),), ("loss", 0.5, 4), ("closed",)]


def test_without_tensorboard_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        open_curves({module.TENSORBOARD: str(tmp_path)})


def test_a_forked_child_has_steps_of_its_own(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.note(5, {})
    pid = os.fork()
    if pid == 0:
        os._exit(0 if steps.report() is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert steps.report() is not None


def test_the_function_notes_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[object] = []
    monkeypatch.setattr(module, "STEPS", type("S", (), {"note": lambda _s, *a: noted.append(a)})())
    observe.step(loss=0.5)
    observe.step(7, number=2)
    assert noted == [(None, {"loss": 0.5}), (7, {"number": 2})]
