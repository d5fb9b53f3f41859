"""A process looks at itself as it would at any other."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from lockstitch import observe
from lockstitch.attach.far import PURPOSE
from lockstitch.attach.presence import Presence
from lockstitch.attach.sources import Sources
from lockstitch.attach.values import Counter, Question, WorkerReport
from lockstitch.observe import looking
from lockstitch.observe.native import PySpyError
from lockstitch.rendezvous.gateway import Gateway
from lockstitch.trust import Secret

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


def test_a_job_of_elsewhere_is_named_by_an_address_and_takes_its_secret(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Secret(b"s" * 32)
    gateway = Gateway("tcp:127.0.0.1:0", secret.of(PURPOSE))
    where = f"tcp://{gateway.address}"
    monkeypatch.delenv("LOCKSTITCH_SECRET", raising=False)
    monkeypatch.delenv("LOCKSTITCH_SECRET_FILE", raising=False)
    with pytest.raises(ValueError, match="takes the job's secret"):
        observe.status(where)
    monkeypatch.setenv("LOCKSTITCH_SECRET", secret.text())
    watch = looking.watch(where)
    job = watch.look(looking.STATUS)
    assert (job.name, [each.card.pid for each in job.processes]) == ("mine", [os.getpid()])
    gateway.close()
    with pytest.raises(observe.JobNotFoundError, match="job mine has ended"):
        watch.look(looking.STATUS)
    with pytest.raises(ConnectionError, match="cannot be asked"):  # it was never there
        observe.status(where)


def test_a_watch_keeps_to_its_job(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = looking.watch(os.getpid())
    assert watch.look(looking.STATUS).name == "mine"
    monkeypatch.setattr(looking.asking, "all_entries", list)
    with pytest.raises(observe.JobNotFoundError, match="job mine has ended"):
        watch.look(looking.STATUS)


def test_a_job_that_ends_before_it_can_be_asked_has_ended(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = looking.watch("mine")
    monkeypatch.setattr(looking, "ask_everywhere", lambda *_asked: looking.asking.Answers())
    with pytest.raises(observe.JobNotFoundError, match="job mine has ended"):
        watch.look(looking.STATUS)
    assert observe.jobs() == []
