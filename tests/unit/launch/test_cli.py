"""`lockstitch secret`: one to standard output, or to a file that only its user can read. And what
the command refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lockstitch.launch.cli import _command, app
from lockstitch.trust.secret import Secret

if TYPE_CHECKING:
    from pathlib import Path


def test_secret_is_printed_and_each_is_another() -> None:
    printed = [CliRunner().invoke(app, ["secret"]) for _ in range(2)]
    assert [each.exit_code for each in printed] == [0, 0]
    assert len({Secret.from_text(each.output) for each in printed}) == 2


def test_secret_is_written_to_a_new_file_and_then_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "job.secret"
    first = CliRunner().invoke(app, ["secret", "--output", str(path)])
    assert (first.exit_code, first.output) == (0, "")
    kept = Secret.from_file(path)
    again = CliRunner().invoke(app, ["secret", "--output", str(path)])
    assert again.exit_code != 0
    assert "cannot write" in again.output
    assert Secret.from_file(path) == kept


def test_the_command_does_without_what_takes_long_to_import() -> None:
    unwanted = "torch numpy yaml lockstitch.doctor".split()
    program = f"import sys, lockstitch.launch.cli; sys.exit(any(map(sys.modules.get, {unwanted})))"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_help_shows_the_names_of_options_whole_on_a_narrow_terminal() -> None:
    help_text = CliRunner().invoke(app, ["run", "--help"], terminal_width=80).output
    assert "--stall-check-shutdown-time-seconds" in help_text
    assert "--timeline-mark-cycles / --no-timeline-mark-cycles" in help_text
    assert "PROGRAM" in help_text.partition("\n")[0]


def test_the_option_that_named_too_few_hosts_is_named(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("localhost slots=2")
    for option, value in (("-H", "localhost:2"), ("--hostfile", str(hostfile))):
        refused = CliRunner().invoke(app, ["run", "-n", "3", option, value, __file__])
        assert refused.exit_code == 2
        assert f"for {option}: 3 workers do not fit into 2 slots" in refused.output


def test_horovodrun_calls_itself_so() -> None:
    program = "from lockstitch.launch.cli import horovodrun; horovodrun()"
    command = [sys.executable, "-c", program, "-np", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Usage: horovodrun [OPTIONS]" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-n", "2"], "Missing argument"),
        (["run", "-n", "0", __file__], "-n"),
        (["run", "-n", "many", __file__], "-n"),
        (["run", __file__], "-n"),
        (["run", "-n", "2", "no_such_script.py"], "there is no file 'no_such_script.py'"),
        (["run", "-n", "2", "--no-such-option", __file__], "--no-such-option"),
        (["walk"], "walk"),
        (["run", __file__, "-n", "2"], "before PROGRAM"),
        (["run", "-n", "2", "/tmp"], "'/tmp' is a folder"),
        (["run", "-n", "2", "--output-filename", __file__, __file__], "--output-filename"),
        (["run", "-n", "2", "--min-np", "3", __file__], "--min-np: 3 workers are more than 2"),
        (["run", "--min-np", "2", "--max-np", "1", __file__], "2 workers are more than 1"),
        (["run", "-n", "2", "--host-discovery-script", "./none", __file__], "no such command"),
        (["run", "-n", "2", "--host-discovery-script", __file__, __file__], "chmod +x"),
        (["run", "--hostfile", "none", __file__], "none: No such file"),
        (["run", "-H", "not a host", __file__], "is no host"),
        (["run", "-n", "3", "-H", "localhost:2", __file__], "do not fit into 2 slots"),
        (["run", "-n", "1", "-H", "localhost", "--hostfile", "h", __file__], "not both"),
        (["run", "-H", "h:1", "--remote-shell", "no-such-shell", __file__], "no-such-shell"),
        (["run", "-n", "1", "--config-file", "none.yaml", __file__], "none.yaml"),
        (["run", "-n", "1", "--log-level", "loud", __file__], "--log-level"),
    ],
)
def test_bad_input_is_refused_with_a_reason(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "executable", "by_python"),
    [
        ("train.py", b"#!/bin/sh\n", True, True),
        ("train", b"print(1)\n", False, True),
        ("train", b"#!/usr/bin/env python3\n", True, True),
        ("train", b"print(1)\n", True, True),
        ("train.sh", b"#!/bin/bash\n", True, False),
        ("train", b"\x7fELF\x02\x01\x01\0", True, False),
    ],
)
def test_what_is_no_script_of_pythons_is_run_by_itself(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes,
    executable: bool,
    by_python: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    (tmp_path / name).chmod(0o755 if executable else 0o644)
    if by_python:
        assert _command(name, ["1"], is_module=False) == [sys.executable, name, "1"]
    else:
        assert _command(name, ["1"], is_module=False) == [f"./{name}", "1"]
        whole = str(tmp_path / name)
        assert _command(whole, [], is_module=False) == [whole]
