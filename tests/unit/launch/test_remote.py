"""The remote shell's command, given to a shell of this machine."""

from __future__ import annotations

import subprocess
import sys

from lockstitch.launch.remote import RemoteShell

SECONDS = 60


def begin(program, environment, folder, monkeypatch):
    monkeypatch.chdir(folder)
    # `env HOST=… /bin/sh` stands for `ssh HOST /bin/sh`.
    command, script = RemoteShell(("env",)).command(
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


def test_ssh_never_asks_for_a_password():
    command, _ = RemoteShell().command("h1", ["true"], {})
    assert command == ["ssh", "-o", "BatchMode=yes", "h1", "/bin/sh"]
