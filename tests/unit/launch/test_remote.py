"""The remote shell's command, given to a shell of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lockstitch.launch.remote import RemoteShell

SECONDS = 60


def begin(program, environment, folder, monkeypatch):
    monkeypatch.chdir(folder)
    # `env HOST=… /bin/sh` stands for `ssh HOST /bin/sh`.
    command, script = RemoteShell(("env",), grace_seconds=1).command(
        "HOST=there", [sys.executable, "-c", program], environment
    )
    process = subprocess.Popen(
        command, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    process.stdin.write(script)
    return process, command


def test_the_worker_gets_its_environment_its_folder_and_an_empty_input(tmp_path, monkeypatch):
    program = (
        "import os, sys; print(os.environ['HOROVOD_X'], os.environ['HOST'], os.getcwd(), "
        "repr(sys.stdin.read()), 'HOME_SWEET' in os.environ); sys.exit(7)"
    )
    secret = 'it\'s "quoted" $HOME'
    environment = {"HOROVOD_X": secret, "HOME_SWEET": "1"}
    process, command = begin(program, environment, tmp_path, monkeypatch)
    with process:
        said = process.stdout.read().decode()
        process.wait(SECONDS)
    assert said == f"{secret} there {tmp_path} '' False\n"
    assert process.returncode == 7
    assert secret not in " ".join(command)


def test_the_worker_ends_with_its_launcher(tmp_path, monkeypatch):
    program = "import signal; print('ready', flush=True); signal.pause()"
    process, _ = begin(program, {}, tmp_path, monkeypatch)
    with process:
        assert process.stdout.readline() == b"ready\n"
        process.stdin.close()
        assert process.wait(SECONDS) == 128 + 15


# A worker that will not hear, with a child that would not, either.
DEAF = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
"""


def has_ended(pid):
    """Ended, also where nobody takes note of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_signal_reaches_the_worker_which_says_its_last_words(tmp_path, monkeypatch):
    program = (
        "import signal, sys\ndef end(*_): print('last words'); sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, end); print('ready', flush=True); signal.pause()"
    )
    process, _ = begin(program, {}, tmp_path, monkeypatch)
    with process:
        assert process.stdout.readline() == b"ready\n"
        process.stdin.write(b"TERM\n")
        assert process.stdout.readline() == b"last words\n"
        assert process.wait(SECONDS) == 9


@pytest.mark.parametrize("ending", ["signal.pause()", "sys.exit(3)"])
def test_nothing_survives_its_launcher_for_long(ending, tmp_path, monkeypatch):
    process, _ = begin(DEAF + ending, {}, tmp_path, monkeypatch)
    with process:
        child = int(process.stdout.readline())
        process.stdin.close()
        assert process.wait(SECONDS) in (3, 128 + 9)
    deadline = time.monotonic() + SECONDS
    while not has_ended(child):
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_ssh_never_asks_for_a_password():
    command, _ = RemoteShell().command("h1", ["true"], {})
    assert command[:3] == ["ssh", "-o", "BatchMode=yes"]
    assert command[-2:] == ["h1", "/bin/sh"]


def test_ssh_notices_a_host_that_is_cut_off():
    command, _ = RemoteShell().command("h1", ["true"], {})
    assert {"ConnectTimeout=10", "ServerAliveInterval=3"} < set(command)  # three are lost at most


@pytest.mark.parametrize(
    ("said_there", "workers", "expected"),
    [
        ("", 1, len(os.sched_getaffinity(0))),
        ("", 1 << 20, 1),
        ("5", 2, 5),
        ("", None, 77),
    ],
)
def test_worker_takes_its_share_of_the_cores_of_its_host(
    said_there, workers, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command, script = RemoteShell(("env",)).command(
        f"OMP_NUM_THREADS={said_there}",
        [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"],
        {"OMP_NUM_THREADS": "77"},
        workers,
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(command, env={"PATH": os.environ["PATH"]}, **pipes) as process:
        process.stdin.write(script)
        assert int(process.stdout.readline()) == expected
