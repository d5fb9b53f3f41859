"""The commands that look at jobs: what they print, and how they refuse."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lockstitch.attach.presence import Presence
from lockstitch.attach.sources import Sources
from lockstitch.attach.values import ContextReport, SentTensors, WorkerReport
from lockstitch.launch.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("LOCKSTITCH_SECRET", raising=False)
    monkeypatch.delenv("LOCKSTITCH_SECRET_FILE", raising=False)
    monkeypatch.setenv("LOCKSTITCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("LOCKSTITCH_JOB", "mine/1")
    sources = Sources()
    context = ContextReport(7, (SentTensors("0.0", 0, ("float32 3",)),))
    sources.workers.append(lambda _question: [WorkerReport("ps", 0, contexts=(context,))])
    presence = Presence(sources)
    presence.show()
    yield
    presence.close()


def run(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == status, done.output
    return done.output


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("ps", ["JOB", "mine", "runs"]),
        ("status", ["job mine (pid", "WORKER", "ps"]),
        ("status mine", ["job mine (pid"]),
        ("top mine -n 2 --every 0.2", ["job mine (pid", "ps"]),
        ("waits mine", ["Nobody waits for another one", "ps (rank 0, pid"]),
        ("graph mine", ['digraph "context 7" {', "sent 0.0", "float32 3"]),
        ("stacks mine --all", ["MainThread", "test_observing.py"]),
    ],
)
def test_what_the_commands_print(mine: None, words: str, parts: list[str]) -> None:
    output = run(*words.split())
    for part in parts:
        assert part in output


def test_every_look_is_shown_where_nobody_sees_a_terminal(mine: None) -> None:
    assert run("top", "mine", "-n", "3", "--every", "0.2").count("job mine (pid") == 3


@pytest.mark.parametrize("command", ["ps", "status", "waits", "stacks"])
def test_each_command_speaks_json(mine: None, command: str) -> None:
    told = json.loads(run(command, "--json"))
    assert str(os.getpid()) in json.dumps(told)


@pytest.mark.parametrize(
    ("ending", "part"), [("svg", "<svg"), ("html", "<!doctype"), ("dot", "digraph"), ("json", "{")]
)
def test_graphs_are_written_in_the_form_of_the_file(
    mine: None, tmp_path: Path, ending: str, part: str
) -> None:
    path = tmp_path / f"context.{ending}"
    assert run("graph", "mine", "--context", "7", "-o", str(path)) == ""
    assert path.read_text().startswith(part)
    assert "float32 3" in path.read_text()


def test_graphs_that_cannot_be_drawn_are_refused(mine: None, tmp_path: Path) -> None:
    assert "no context 8" in run("graph", "--context", "8", status=1)
    assert "must end in one of" in run("graph", "-o", str(tmp_path / "x.png"), status=2)


def test_a_job_that_is_not_there_is_refused_in_a_line(mine: None) -> None:
    assert run("waits", "theirs", status=1).startswith("lockstitch: no job is called theirs")


def test_a_job_is_named_in_one_way(mine: None) -> None:
    assert "say JOB or --address, not both" in run("status", "mine", "--address", "a:1", status=2)
    error = run("waits", "--address", "127.0.0.1:1", status=1)
    assert error.startswith("lockstitch: to ask 127.0.0.1:1 takes the job's secret")


def test_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTITCH_RUNTIME_DIR", str(tmp_path / "none"))
    assert "no job of this user runs on this host" in run("ps")
    assert "no process of this user on this host can be looked at" in run("status", status=1)
