"""What a remote shell is to run, and the script that begins an agent, run by a shell of this
machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lockstitch.launch.process import with_defaults
from lockstitch.launch.remote import RemoteShell

SECONDS = 60
# `env HOST=… /bin/sh` stands for `ssh HOST /bin/sh`.
HERE = RemoteShell(("env",))


def said(environment, **changes):
    """What the script prints where an agent would begin."""
    command, script = HERE.command("HOST=there", environment)
    for old, new in changes.items():
        script = script.replace(old.encode(), new.encode())
    done = subprocess.run(
        command, env={}, input=script, capture_output=True, timeout=SECONDS, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_ssh_never_asks_for_a_password():
    command, _ = RemoteShell().command("h1", {})
    assert command[:3] == ["ssh", "-o", "BatchMode=yes"]
    assert "ControlMaster=no" in command
    assert command[-2:] == ["h1", "/bin/sh"]


def test_ssh_notices_a_host_that_is_cut_off():
    command, _ = RemoteShell().command("h1", {})
    assert {"ConnectTimeout=10", "ServerAliveInterval=3"} < set(command)  # three are lost at most


def test_an_agent_gets_the_variables_that_matter_and_no_secret():
    awkward = 'it\'s "quoted" $HOME'
    given = {
        "HOROVOD_X": awkward,
        "HOME_SWEET": "1",
        "LOCKSTITCH_SECRET": "of-the-job",
        "LOCKSTITCH_SECRET_FILE": "/of/this/host",
    }
    command, script = HERE.command("HOST=there", given)
    assert b"of-the-job" not in script
    assert b"/of/this/host" not in script
    assert awkward not in " ".join(command)
    names = "HOROVOD_X HOST HOME_SWEET"
    program = f'import os; print([*map(os.environ.get, "{names}".split())])'
    begin = "from lockstitch.launch.agent.host_agent import main; main()"
    assert said(given, **{begin: program}) == (0, f"{[awkward, 'there', None]}\n", "")


def test_what_only_workers_of_this_machine_begin_with_is_not_passed_on():
    first = with_defaults({}, 1, {})["PYTHONPATH"]
    _, script = HERE.command("h1", {"PYTHONPATH": f"{first}:/mine"})
    assert b"export PYTHONPATH=/mine\n" in script


def test_variables_of_the_shell_may_be_forgotten():
    _, script = RemoteShell(("srun",), ("SLURM_PROCID",)).command("n1", {})
    assert b"unset SLURM_PROCID\n" in script


def test_a_folder_that_is_not_there_is_told(tmp_path, monkeypatch):
    gone = tmp_path / "a folder"
    gone.mkdir()
    monkeypatch.chdir(gone)
    _, script = HERE.command("HOST=there", {})
    gone.rmdir()
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        ["/bin/sh"], input=script, capture_output=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 1
    assert f"there is no folder {gone} there" in done.stderr.decode()


@pytest.mark.parametrize(
    ("python", "told"),
    [
        ("/no/such/python", "there is no Python at /no/such/python there"),
        ("/bin/false", ""),
    ],
)
def test_a_python_that_is_not_there_is_told(python, told, monkeypatch):
    monkeypatch.setattr(sys, "executable", python)
    code, _, error = said({})
    assert code == 1
    assert told in error


def test_a_python_without_lockstitch_says_so(monkeypatch):
    code, _, error = said({}, **{" -c ": " -I -S -c "})
    assert code == 1
    assert "No module named 'lockstitch'" in error
