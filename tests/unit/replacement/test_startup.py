from __future__ import annotations

import importlib

import pytest

import lockstitch.hvd
from lockstitch.replacement import active, startup


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is replaced for the rest of the process is put back after the test."""
    replacements = []
    replace = startup.replace
    monkeypatch.setattr(startup, "replace", lambda *names: replacements.append(replace(*names)))
    yield
    for replacement in replacements:
        replacement.undo()


@pytest.mark.usefixtures("undone")
def test_variable_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTITCH_REPLACE", "horovod")
    startup.replace_as_asked()
    assert active() == ("horovod",)
    assert importlib.import_module("horovod.torch").allreduce is lockstitch.hvd.allreduce


def test_empty_variable_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTITCH_REPLACE", "")
    startup.replace_as_asked()
    assert active() == ()


def test_unknown_name_ends_the_process_with_what_is_known(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = []
    monkeypatch.setattr(startup.os, "_exit", ends.append)
    monkeypatch.setenv("LOCKSTITCH_REPLACE", "mpi")
    with pytest.raises(UnboundLocalError):  # where the process would be over
        startup.replace_as_asked()
    assert ends == [2]
    assert "LOCKSTITCH_REPLACE: nothing is known by the name 'mpi'" in capfd.readouterr().err
