"""py-spy looks at a process from outside, where it is installed and may."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lockstitch.observe import native

if TYPE_CHECKING:
    from pathlib import Path


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program in the place of py-spy."""
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(native, "find_py_spy", lambda: str(program))


def test_its_words_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, 'echo "$@"')
    assert native.stacks_of(7, native=True) == "dump --pid 7 --native\n"
    assert native.stacks_of(7, native=False) == "dump --pid 7\n"


def test_what_it_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "echo Permission denied >&2; exit 1")
    with pytest.raises(native.PySpyError, match=r"process 7: Permission denied .*SYS_PTRACE"):
        native.stacks_of(7, native=True)


def test_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find_py_spy", lambda: None)
    with pytest.raises(native.PySpyError, match=r"pip install 'lockstitch\[native\]'"):
        native.stacks_of(os.getpid(), native=True)
