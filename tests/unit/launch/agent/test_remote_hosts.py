"""Agents of this machine, in the loop of a job that a test plays."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from lockstitch.launch.agent.messages import Begin
from lockstitch.launch.agent.remote_hosts import RemoteHosts
from lockstitch.launch.process_loop import ProcessLoop
from lockstitch.launch.remote import RemoteShell
from lockstitch.trust import Secret

ECHO = "import os; print(os.environ['RANK'], os.getppid())"
WAITS = "import signal; print('ready', flush=True); signal.pause()"
CRASHES = f"""
import os
if os.environ["RANK"] == "0":
    os.kill(os.getppid(), 9)
{WAITS}
"""


class Job(ProcessLoop):
    """Starts the workers of `places`, by host."""

    def __init__(self, program, places, shell=("env",), heartbeat=10.0):
        super().__init__(1.0)
        self.places, self.ended, self.notes, self.outputs = places, {}, [], {}
        self.look = lambda: None
        setup = Begin((sys.executable, "-c", program), Secret.make().text(), 1.0, 6 * heartbeat)
        # `env HOST=… /bin/sh` stands for `ssh HOST /bin/sh`.
        shell = RemoteShell(shell)
        self.hosts = RemoteHosts(shell, os.environ, setup, self, self, heartbeat)
        self.seconds_to_next, self.pass_time = self.hosts.seconds_to_next, self.hosts.pass_time

    def begin(self):
        self.resources.callback(self.hosts.close)
        rank = 0
        for host, count in self.places.items():
            for _ in range(count):
                self.hosts.start(rank, f"HOST={host}", {"RANK": str(rank)}, count)
                rank += 1

    def is_busy(self):
        return len(self.ended) < sum(self.places.values())

    def take_output(self, worker, stream, chunk):
        if stream == "stdout":
            self.outputs[worker] = self.outputs.get(worker, "") + chunk.decode()
            self.look()

    def take_end_elsewhere(self, worker):
        self.ended[worker.rank] = worker.describe_end()
        self.look()

    def note(self, text):
        self.notes.append(text)

    def obey(self, number):
        del number

    def wind_up(self):
        super().wind_up()
        self.hosts.close()

    def signal_all(self, number):
        super().signal_all(number)
        self.hosts.signal_all(number)


def test_each_host_has_one_agent_and_each_agent_its_workers():
    job = Job(ECHO, {"alpha": 3, "beta": 2})
    job.run_loop()
    assert set(job.ended.values()) == {
        "exit code 0 on host HOST=alpha",
        "exit code 0 on host HOST=beta",
    }
    agents = [job.outputs[rank].split()[1] for rank in range(5)]
    assert agents[0] == agents[1] == agents[2] != agents[3] == agents[4]
    assert job.notes == []


def test_an_agent_that_dies_takes_its_own_workers_along_and_no_others():
    job = Job(CRASHES, {"alpha": 2, "beta": 1})

    def look():
        if set(job.ended) == {0, 1} and 2 in job.outputs:
            job.escalation.begin(signal.SIGTERM, 0)

    job.look = look
    job.run_loop()
    assert job.ended == {
        0: "its agent has ended: killed by SIGKILL on host HOST=alpha",
        1: "its agent has ended: killed by SIGKILL on host HOST=alpha",
        2: "killed by SIGTERM on host HOST=beta",
    }


def test_all_workers_of_all_hosts_get_a_signal():
    job = Job(WAITS, {"alpha": 1, "beta": 1})
    job.look = lambda: job.escalation.begin(signal.SIGTERM, 0) if len(job.outputs) == 2 else None
    job.run_loop()
    assert job.ended == {
        0: "killed by SIGTERM on host HOST=alpha",
        1: "killed by SIGTERM on host HOST=beta",
    }


def test_a_silent_agent_is_lost_within_the_heartbeat():
    job = Job(
        "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)", {"alpha": 1}, heartbeat=0.5
    )
    job.run_loop()
    assert job.ended == {0: "its agent is lost: it has been silent for 0.5 s on host HOST=alpha"}


def test_a_command_that_is_not_there_is_refused_at_once():
    job = Job(ECHO, {"alpha": 1}, shell=("/no/such/shell",))
    with pytest.raises(FileNotFoundError):
        job.run_loop()
