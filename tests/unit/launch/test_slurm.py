from __future__ import annotations

import socket
import subprocess

import pytest

from lockstitch.launch import slurm
from lockstitch.launch.slurm import Allocation, StepShell

TOLD = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[08-10],login",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_CPUS_PER_NODE": "16(x3),4",
}
SECRET = "of-the-user"


class Command:
    """What `subprocess.run` would do."""

    def __init__(self, stdout="", stderr="", is_silent=False):
        self.stdout, self.stderr, self._is_silent = stdout, stderr, is_silent
        self.words = []

    def __call__(self, words, **_options):
        self.words = words
        if self._is_silent:
            raise subprocess.TimeoutExpired(words, 20)
        return subprocess.CompletedProcess(words, 0, self.stdout, self.stderr)


@pytest.fixture
def answers(monkeypatch):
    def answer(**given):
        command = Command(**given)
        monkeypatch.setattr(subprocess, "run", command)
        monkeypatch.setattr(slurm.shutil, "which", lambda name: f"/bin/{name}")
        return command

    return answer


def test_an_allocation_has_a_slot_for_each_of_its_tasks():
    found = Allocation.read(TOLD)
    assert found == Allocation("12", (("n08", 2), ("n09", 2), ("n10", 2), ("login", 1)), 4)
    assert found.described() == "n08:2,n09:2,n10:2,login:1"


def test_processors_of_a_worker_are_those_that_were_asked_for():
    assert Allocation.read({**TOLD, "SLURM_CPUS_PER_TASK": "3"}).cpus_per_worker == 3
    without = {name: it for name, it in TOLD.items() if name != "SLURM_JOB_CPUS_PER_NODE"}
    assert Allocation.read(without).cpus_per_worker == 1


def test_without_a_count_for_each_node_it_is_the_same_on_all():
    told = {**TOLD, "SLURM_NTASKS_PER_NODE": "3"}
    del told["SLURM_TASKS_PER_NODE"]
    assert {count for _, count in Allocation.read(told).slots} == {3}
    del told["SLURM_NTASKS_PER_NODE"]
    assert {count for _, count in Allocation.read(told).slots} == {1}


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"SLURM_JOB_ID": "12"},
        {**TOLD, "SLURM_STEP_NUM_TASKS": "2"},  # one of two launchers
    ],
)
def test_there_may_be_none_to_start_in(told):
    assert Allocation.read(told) is None


def test_a_shell_that_is_a_step_of_one_task_may_start_others():
    assert Allocation.read({**TOLD, "SLURM_STEP_NUM_TASKS": "1"}) is not None


def test_counts_that_do_not_fit_the_nodes_are_refused():
    with pytest.raises(ValueError, match=r"='2' counts the tasks of 1 nodes, but .* names 4"):
        Allocation.read({**TOLD, "SLURM_TASKS_PER_NODE": "2"})


def test_an_allocation_that_runs_can_be_used(answers):
    asked = answers(stdout="RUNNING\n")
    Allocation.read(TOLD).check()
    assert asked.words == ["squeue", "--noheader", "--jobs=12", "--format=%T"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"stdout": "COMPLETING\n"}, "COMPLETING"),
        ({"stdout": ""}, "it is not in the queue any more"),
        ({"stderr": "Invalid job id specified"}, "Invalid job id specified"),
        ({"is_silent": True}, "does not answer"),
    ],
)
def test_an_allocation_that_has_ended_is_refused_in_words(answers, answer, said):
    answers(**answer)
    with pytest.raises(ValueError, match=said) as caught:
        Allocation.read(TOLD).check()
    assert "allocation 12" in str(caught.value)
    assert socket.gethostname() in str(caught.value)


def test_where_slurm_cannot_be_asked_srun_will_tell(monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda _name: None)
    Allocation.read(TOLD).check()


def test_srun_starts_the_workers_of_all_nodes_and_knows_no_secret(monkeypatch):
    for name, value in {
        "LOCKSTITCH_SECRET": SECRET,
        "LOCKSTITCH_SECRET_FILE": "/of/this/host",
        "RANK": "7",
        "SLURM_NTASKS": "7",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_MEM_PER_CPU": "100",
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_JOB_ID": "12",
        "SLURM_CONF": "/etc/slurm.conf",
    }.items():
        monkeypatch.setenv(name, value)
    shell = StepShell()
    assert shell.starts_on(socket.gethostname())
    ours = ("SLURM_", "LOCKSTITCH_", "RANK")
    told = {name: it for name, it in shell.environment().items() if name.startswith(ours)}
    assert told == {"SLURM_JOB_ID": "12", "SLURM_CONF": "/etc/slurm.conf"}
    command, script = shell.command("n08", {"LOCKSTITCH_SECRET": SECRET})
    assert command[0] == "srun"
    assert command[-3:] == ["--nodelist", "n08", "/bin/sh"]
    assert SECRET not in " ".join(command)
    assert SECRET.encode() not in script
    assert b"unset SLURM_PROCID" in script


def test_a_node_has_the_address_that_slurm_has_for_it_where_its_name_is_no_other(
    answers, monkeypatch
):
    slurm._address_of_node.cache_clear()
    answers(stdout="NodeName=cloud7 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=cloud7")

    def nobody_knows(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)
    shell = StepShell()
    assert shell.address_of("cloud7") == "10.0.0.7"
    slurm._address_of_node.cache_clear()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    assert shell.address_of("cloud7") == "cloud7"
    slurm._address_of_node.cache_clear()
