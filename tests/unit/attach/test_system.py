"""What /proc tells."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lockstitch.attach import system

if TYPE_CHECKING:
    from pathlib import Path


def test_this_process_is_seen() -> None:
    told = system.look_at(os.getpid())
    assert told is not None
    assert told.memory > 1 << 20
    assert told.threads >= 1
    assert told.state in system.STATES


def test_a_process_that_is_not_there_tells_nothing() -> None:
    nobody = 2**22 + 1  # beyond the greatest process id
    assert system.look_at(nobody) is None
    assert system.born(nobody) is None


def test_a_zombie_is_not_alive_and_a_birth_is_a_time() -> None:
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert system.born(child.pid) is not None
        assert before - 1 < system.started_at(child.pid) < time.time() + 1
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert system.born(child.pid) is None
        told = system.look_at(child.pid)
        assert told is not None
        assert told.state == "Z"


def test_the_state_of_a_thread_that_runs_and_of_none() -> None:
    assert system.thread_state(threading.get_native_id()) == "R"
    assert system.thread_state(2**22 + 1) == ""


@pytest.mark.parametrize(
    ("state", "file", "content", "told"),
    [
        ("D", "cgroup.events", "populated 1\nfrozen 0\n", "waits (as for a disk"),
        ("S", "cgroup.events", "populated 1\nfrozen 1\n", "is frozen"),
        ("D", "freezer.state", "FROZEN\n", "is frozen"),
        ("D", "freezer.state", "THAWED\n", "waits (as for a disk"),
    ],
)
def test_who_waits_without_end_or_is_frozen_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, file: str, content: str, told: str
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (python) {state} " + "0 " * 40)
    (tmp_path / file).write_text(content)
    monkeypatch.setattr(system, "_PROC", tmp_path)
    monkeypatch.setattr(system, "group_files", lambda *_asked: [tmp_path / file])
    found = system.look_at(7)
    assert found is not None
    assert system.STATES[found.state].startswith(told)


@pytest.mark.parametrize(("others", "state", "kept"), [("SR", "R", ""), ("SS", "S", "futex_wait")])
def test_a_process_runs_where_any_of_its_threads_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str, state: str, kept: str
) -> None:
    """As where C code in a thread keeps the interpreter's lock from all others."""
    for place, each in {
        "7": "S",
        "7/task/7": "S",
        "7/task/8": others[0],
        "7/task/9": others[1],
    }.items():
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "stat").write_text(f"7 (python) {each} " + "0 " * 40)
    (tmp_path / "7" / "wchan").write_text("futex_wait")
    monkeypatch.setattr(system, "_PROC", tmp_path)
    found = system.look_at(7)
    assert found is not None
    assert (found.state, found.waits_in) == (state, kept)


@pytest.mark.parametrize(
    ("where", "call", "kept"),
    [
        ("futex_do_wait", "202 0x1 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f", "lock"),
        ("futex_do_wait", "202 0x1 0x89 0x0 0x7f98 0x0 0xffffffff 0x7f 0x7f", "limited lock"),
        ("hrtimer_nanosleep", "230 0x1 0x1 0x7f 0x0 0x0 0x7f 0x7f 0x7f", "sleep"),
        ("futex_do_wait", "202 0x1 0x80 0x2 0x0 0x0 0x7f 0x7f 0x7f", ""),  # for a mutex
        ("poll_schedule_timeout", "270 0x0 0x0 0x0 0x0 0x7f 0x0 0x7f 0x7f", "sleep"),
        ("poll_schedule_timeout", "270 0x4 0x7f 0x0 0x0 0x7f 0x0 0x7f 0x7f", ""),
        ("anon_pipe_read", "0 0x3 0x7f 0x1 0x0 0x0 0x7f 0x7f 0x7f", ""),
        ("0", "98 0x1 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f", "lock"),  # on an aarch64
        ("0", "running", ""),
        ("", "", ""),
    ],
)
def test_what_keeps_a_thread_is_read_off_the_kernels_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, call: str, kept: str
) -> None:
    folder = tmp_path / "self" / "task" / "7"
    folder.mkdir(parents=True)
    (folder / "wchan").write_text(where)
    (folder / "syscall").write_text(call)
    monkeypatch.setattr(system, "_PROC", tmp_path)
    machine = os.uname_result(("Linux", "host", "6", "1", "aarch64"))
    monkeypatch.setattr(os, "uname", lambda: machine)
    assert system.what_keeps(7) == kept


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("/usr/bin/python3 train.py --lr 1", "train"),
        ("python -u -W ignore some/where/train.py", "train"),
        ("python3.11 -m package.train", "package.train"),
        ("python -c print()", "python -c"),
        ("python", "python"),
        ("/opt/bin/worker.sh -n 3", "worker"),
        ("", ""),
    ],
)
def test_the_name_of_a_program(words: str, name: str) -> None:
    assert system.name_of_program(words.split(" ")) == name
