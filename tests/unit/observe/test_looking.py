"""A process looks at itself as it would at any other."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from lockstitch import observe
from lockstitch.attach.presence import Presence
from lockstitch.attach.sources import Sources
from lockstitch.attach.values import Counter, Question, WorkerReport
from lockstitch.observe import looking
from lockstitch.observe.native import PySpyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@dataclass
class Told:
    """What this process says, and what it was asked."""

    questions: list[Question] = field(default_factory=list)

    def __call__(self, question: Question) -> Sequence[WorkerReport]:
        self.questions.append(question)
        return [WorkerReport("ps", 0, counters=(Counter("lockstitch_rpc_calls_total", 3),))]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setenv("LOCKSTITCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("LOCKSTITCH_JOB", "mine/1")
    told, sources = Told(), Sources()
    sources.workers.append(told)
    sources.names.append(lambda: ["ps"])
    presence = Presence(sources)
    presence.show()
    yield told
    presence.close()


def test_the_jobs_there_are(told: Told) -> None:
    (job,) = observe.jobs()
    assert (job.name, job.pid, job.state) == ("mine", os.getpid(), "runs")


@pytest.mark.parametrize("wanted", [None, "mine", os.getpid()], ids=["all", "name", "pid"])
def test_the_status_of_a_job_takes_one_question(told: Told, wanted: str | int | None) -> None:
    job = observe.status(wanted)
    assert job.processes[0].workers[0].counters[0].value == 3
    # That with the rates looks at the counters twice, without a further message.
    assert [each.counters for each in told.questions] == [True, True]


def test_what_a_job_waits_for(told: Told) -> None:
    (participant,) = observe.waits().participants
    assert participant.name == "ps"
    assert participant.main_thread is not None
    assert participant.main_thread.at is not None
    assert participant.main_thread.at.function == "test_what_a_job_waits_for"


def test_stacks_from_inside_and_from_outside(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "find_py_spy", lambda: None)
    (participant,) = observe.stacks()
    assert participant.main_thread is not None
    functions = [line.function for line in participant.main_thread.stack]
    assert "test_stacks_from_inside_and_from_outside" in functions
    with pytest.raises(PySpyError, match="not installed"):
        observe.stacks(native=True)
    monkeypatch.setattr(looking, "find_py_spy", lambda: "py-spy")
    monkeypatch.setattr(looking, "stacks_of", lambda pid, native: f"{pid} {native}")
    assert observe.stacks()[0].outside == ""  # it has answered
    assert observe.stacks(native=True)[0].outside == f"{os.getpid()} True"


def test_a_job_that_is_not_there(told: Told) -> None:
    with pytest.raises(observe.JobNotFoundError, match="no job is called theirs"):
        observe.status("theirs")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = observe.nothing
