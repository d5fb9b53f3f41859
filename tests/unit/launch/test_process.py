"""What a worker's process is told, and how its end is put into words."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from lockstitch.launch.meeting import MeetingPlace
from lockstitch.launch.process import (
    WorkerProcess,
    child_pids,
    describe_exit,
    exit_status,
    worker_environment,
)


@pytest.fixture
def meeting():
    with MeetingPlace() as place:
        yield place


def test_environment_names_the_place_among_the_workers(meeting) -> None:
    environment = worker_environment(1, 4, meeting, {"HOME": "/root", "RANK": "7"})
    assert environment["HOME"] == "/root"
    assert environment["RANK"] == environment["LOCAL_RANK"] == "1"
    assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "4"
    assert environment["MASTER_ADDR"] == "127.0.0.1"
    assert environment["MASTER_PORT"] == str(meeting.port)
    assert environment["LOCKSTITCH_STORE"] == meeting.store
    horovods = {name[8:]: environment[name] for name in environment if name.startswith("HOROVOD_")}
    assert horovods == {
        "RANK": "1",
        "SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_SIZE": "4",
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
        "HOSTNAME": "localhost",
    }


@pytest.mark.parametrize(("workers", "threads"), [(1, "8"), (2, "4"), (3, "2"), (100, "1")])
def test_workers_share_the_cores(
    workers: int, threads: str, meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert worker_environment(0, workers, meeting, {})["OMP_NUM_THREADS"] == threads


def test_number_of_threads_set_by_the_user_stays(meeting) -> None:
    assert worker_environment(0, 2, meeting, {"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("code", "words", "status"),
    [
        (0, "exit code 0", 0),
        (3, "exit code 3", 3),
        (-signal.SIGSEGV, "killed by SIGSEGV", 139),
        (-40, "killed by signal 40", 168),
    ],
)
def test_end_in_words_and_as_a_shell_would_report_it(code: int, words: str, status: int) -> None:
    assert describe_exit(code) == words
    assert exit_status(code) == status


def test_process_leads_a_session_and_tells_how_it_ended() -> None:
    program = "import os; print(os.getsid(0) == os.getpid())"
    process = WorkerProcess(0, [sys.executable, "-c", program], os.environ)
    with process.stdout, process.stderr:
        assert process.pid in child_pids()
        assert process.stdout.read() == b"True\n"
        assert process.exit_code is None
        _, status = os.waitpid(process.pid, 0)
        assert process.note_end(status) == process.exit_code == 0
    process.signal(signal.SIGKILL)  # harmless now
    assert repr(process) == f"<WorkerProcess 0 · pid {process.pid} · exit code 0>"
