from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from lockstitch.doctor import libraries
from lockstitch.doctor.libraries import check_python, check_torch, look_at_libraries

ANSWERS: dict[str, Any] = {
    "version": "2.13.0+cpu",
    "cpu": "AVX2",
    "gpus": [],
    "built for": "",
    "nccl": False,
    "gloo": True,
    "segments": True,
    "rings": True,
    "missing": [],
}


def said(**changes: Any) -> dict[str, str]:
    return {it.topic: it.says for it in look_at_libraries(lambda: {**ANSWERS, **changes})}


def test_all_that_is_here_is_told() -> None:
    text = said()
    assert text["torch"] == "2.13.0+cpu"
    assert text["transports"].endswith("shared memory for short messages")
    assert text["launchers"].startswith("lockstitch run")


def test_gpus_are_named_or_said_to_be_missing() -> None:
    assert "H100, without NCCL" in said(gpus=["H100"])["gpu"]
    assert said(**{"built for": "13.0"})["gpu"] == "none, though torch is built for CUDA 13.0"


def test_missing_gloo_is_told() -> None:
    assert "no Gloo" in said(gloo=False)["transports"]


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.15.1"])
def test_tested_torch_is_good(version: str) -> None:
    assert check_torch({"version": version}).state == "good"


@pytest.mark.parametrize("version", ["2.9.1", "2.16.0", "3.0.0"])
def test_another_torch_is_worth_a_note(version: str) -> None:
    assert check_torch({"version": version}).state == "note"


def test_torch_that_cannot_be_imported_is_wrong_and_nothing_else_is_asked_of_it() -> None:
    findings = list(look_at_libraries(lambda: {"error": "ImportError: it lacks x"}))
    found = next(it for it in findings if it.topic == "torch")
    assert found.state == "wrong"
    assert "it lacks x" in found.says
    assert "gpu" not in [it.topic for it in findings]


def test_what_torch_lacks_is_told_with_what_is_off() -> None:
    lacks = ["torch._a is missing; it should add", "quick sums: off", False]
    slower = ["torch._b is missing; it should copy", "quick copies: does without it", True]
    found = look_at_libraries(lambda: {**ANSWERS, "missing": [lacks, slower]})
    version, wrong, note = [it for it in found if it.topic == "torch"]
    assert (version.state, wrong.state, note.state) == ("good", "wrong", "note")
    assert wrong.says == "torch._a is missing; it should add. Quick sums: off"
    assert note.says.endswith("Quick copies: does without it")
    assert wrong.remedy


def test_python_is_told_with_whether_it_has_a_gil() -> None:
    assert check_python((3, 12), is_free_threaded=False).state == "good"
    assert check_python((3, 13), is_free_threaded=True).state == "note"
    assert "Ctrl-C" in check_python((3, 14), is_free_threaded=False).says
    assert check_python((3, 15), is_free_threaded=False).state == "wrong"
    assert check_python((3, 9), is_free_threaded=False).state == "wrong"


def test_answers_come_from_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_QUESTIONS", "print('noise'); print('{\"version\": 1}')")
    assert libraries.ask_torch() == {"version": 1}
    monkeypatch.setattr(libraries, "_QUESTIONS", "raise ImportError('it lacks x')")
    assert libraries.ask_torch() == {"error": "ImportError: it lacks x"}


def test_torch_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(libraries.subprocess, "run", run)
    assert "more than 120 s" in libraries.ask_torch()["error"]


@pytest.mark.slow
def test_command_tells_of_this_machine() -> None:
    command = [sys.executable, "-m", "lockstitch", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "torch " in done.stdout, done.stderr
    assert done.returncode == ("WRONG" in done.stdout)
