from __future__ import annotations

import signal

import pytest

from lockstitch.launch import starting
from lockstitch.launch.remote import RemoteShell
from lockstitch.launch.starting import ProcessStarter, WorkerCommand
from lockstitch.launcher_link.slots import Slot
from lockstitch.trust.secret import FILE_VARIABLE

TOLD = {"LOCKSTITCH_BOARD": "unix:/near", "LOCKSTITCH_WORKER": "4", "LOCAL_RANK": "0"}


class Worker:
    """What would be started, here or elsewhere."""

    def __init__(self, rank, command, environment, host="", workers_here=0):
        self.rank, self.command, self.environment, self.host = rank, command, environment, host
        self.workers_here = workers_here
        self.signals = []

    def signal(self, number):
        self.signals.append(number)


class Job:
    """The job, and its other hosts."""

    def __init__(self, **options):
        self.followed, self.tracked, self.failed, self.listened = [], [], [], 0
        inherited = {FILE_VARIABLE: "/the/file", "PATH": "/bin"}
        self.starter = ProcessStarter(
            WorkerCommand(["train"], inherited, **options),
            self,
            self,
            lambda *failure: self.failed.append(failure),
            self.listen,
        )

    def start(self, *given):
        """As a follower of processes, or as the other hosts."""
        if len(given) == 1:
            self.followed += given
            return None
        worker, host, variables, workers_here = given
        return Worker(worker, (), variables, host, workers_here)

    def track(self, worker):
        self.tracked.append(worker)

    def listen(self):
        self.listened += 1
        return "tcp:10.0.0.1:7"


@pytest.fixture(autouse=True)
def processes(monkeypatch):
    monkeypatch.setattr(starting, "WorkerProcess", Worker)
    monkeypatch.setenv("LOCKSTITCH_ADDRESS", "10.0.0.1")


def test_a_worker_of_this_host_gets_what_it_is_told_beside_what_is_inherited():
    job = Job()
    job.starter.start(4, Slot("localhost", 0), TOLD)
    (worker,) = job.followed
    assert worker.command == ["train"]
    assert worker.environment["LOCKSTITCH_BOARD"] == "unix:/near"
    assert worker.environment[FILE_VARIABLE] == "/the/file"
    assert "LOCKSTITCH_REACHED_AT" not in worker.environment


def test_a_worker_elsewhere_is_reached_there_and_its_agent_hands_over_the_secret():
    job = Job(shell=RemoteShell(("ssh",)), may_be_far=True)
    job.starter.start(4, Slot("far", 0), TOLD)
    job.starter.start(5, Slot("far", 1), TOLD)
    job.starter.start(6, Slot("localhost", 0), TOLD)
    far, second = job.tracked
    (near,) = job.followed
    assert job.listened == 1
    assert far.environment == {
        **TOLD,
        "LOCKSTITCH_BOARD": "tcp:10.0.0.1:7",
        "LOCKSTITCH_ADDRESS": "far",
        "LOCKSTITCH_REACHED_AT": "far",
    }
    assert (far.workers_here, second.workers_here) == (1, 2)
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
    job = Job(shell=RemoteShell(("ssh",)))
    job.starter.start(4, Slot("far", 0), TOLD)
    job.starter.stop(4, signal.SIGKILL)
    for _ in range(2):
        job.starter.note_end(4)
    job.starter.stop(4, signal.SIGKILL)
    assert job.tracked[0].signals == [signal.SIGKILL]
    job.starter.start(5, Slot("far", 0), TOLD)
    assert job.tracked[1].workers_here == 1
