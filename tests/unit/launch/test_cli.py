"""`lockstitch secret`: one to standard output, or to a file that only its user can read."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from lockstitch.launch.cli import app
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
