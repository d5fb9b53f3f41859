from __future__ import annotations

import signal

import pytest

from lockstitch.launch import starting
from lockstitch.launch.remote import RemoteShell
from lockstitch.launch.starting import ProcessStarter, WorkerCommand
from lockstitch.launcher_link.slots import Slot
from lockstitch.trust import Secret
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE

TOLD = {"LOCKSTITCH_BOARD": "unix:/near", "LOCKSTITCH_WORKER": "4", "LOCAL_RANK": "0"}


class Process:
    """What would be started."""

    def __init__(self, worker, command, environment, script=None, host=""):
        self.worker, self.command, self.environment = worker, command, environment
        self.script, self.host = script, host
        self.signals = []

    def signal(self, number):
        self.signals.append(number)


class Job:
    def __init__(self, **options):
        self.followed, self.failed, self.listened = [], [], 0
        inherited = {FILE_VARIABLE: "/the/file", "RANK": "7", "PATH": "/bin"}
        self.secret = Secret.make()
        self.starter = ProcessStarter(
            WorkerCommand(["train"], inherited, self.secret, **options),
            self.followed.append,
            lambda *failure: self.failed.append(failure),
            self.listen,
        )

    def listen(self):
        self.listened += 1
        return "tcp:10.0.0.1:7"


@pytest.fixture(autouse=True)
def processes(monkeypatch):
    monkeypatch.setattr(starting, "WorkerProcess", Process)
    monkeypatch.setenv("LOCKSTITCH_ADDRESS", "10.0.0.1")


def test_a_worker_of_this_host_gets_what_it_is_told_and_no_rank_of_another_job():
    job = Job()
    job.starter.start(4, Slot("localhost", 0), TOLD)
    (process,) = job.followed
    environment = process.environment
    assert environment["LOCKSTITCH_BOARD"] == "unix:/near"
    assert environment[FILE_VARIABLE] == "/the/file"
    assert "RANK" not in environment
    assert "LOCKSTITCH_REACHED_AT" not in environment
    assert process.script is None


def test_a_worker_elsewhere_is_reached_there_and_gets_the_secret_by_its_input():
    job = Job(shell=RemoteShell(("ssh",)), may_be_far=True)
    job.starter.start(4, Slot("far", 0), TOLD)
    job.starter.start(5, Slot("far", 1), TOLD)
    job.starter.start(6, Slot("localhost", 0), TOLD)
    far, _, near = job.followed
    assert job.listened == 1
    said = far.script.decode()
    assert "export LOCKSTITCH_BOARD=tcp:10.0.0.1:7" in said
    assert "export LOCKSTITCH_ADDRESS=far" in said
    assert f"export {VARIABLE}={job.secret.text()}" in said
    assert job.secret.text() not in " ".join(far.command)
    assert [job.starter.host_of(worker) for worker in (4, 6, 7)] == ["far", "", ""]
    assert near.environment["LOCKSTITCH_ADDRESS"] == "10.0.0.1"


def test_what_cannot_be_started_has_ended_at_once(monkeypatch):
    def refuse(*_arguments):
        raise FileNotFoundError("train")

    monkeypatch.setattr(starting, "WorkerProcess", refuse)
    job = Job()
    job.starter.start(4, Slot("localhost", 0), TOLD)
    assert job.followed == []
    assert job.failed == [(4, "it could not be started: train")]


def test_who_runs_can_be_stopped_and_who_has_ended_is_left_alone():
    job = Job()
    job.starter.start(4, Slot("localhost", 0), TOLD)
    job.starter.stop(4, signal.SIGKILL)
    job.starter.note_end(4)
    job.starter.stop(4, signal.SIGKILL)
    assert job.followed[0].signals == [signal.SIGKILL]
