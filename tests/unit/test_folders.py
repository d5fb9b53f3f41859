from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lockstitch.folders import Folder, remove_abandoned

KEEPER = """
import sys
from lockstitch.folders import Folder
folder = Folder(sys.argv[1])
(folder.path / "inside").write_text("x")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def keeper(tmp_path):
    """Another process that has made a folder, and that folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_folder_is_its_users_alone_and_goes_with_the_block(tmp_path):
    with Folder(str(tmp_path)) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert list(tmp_path.iterdir()) == [path]
        (path / "inside").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_killed_process_goes_when_another_is_made(keeper, tmp_path):
    process, path = keeper
    Folder(str(tmp_path)).close()
    assert (path / "inside").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert path.exists()
    with Folder(str(tmp_path)) as ours:
        assert list(tmp_path.iterdir()) == [ours]


def test_folder_of_a_killed_process_goes_when_another_is_removed(keeper, tmp_path):
    process, _path = keeper
    ours = Folder(str(tmp_path))
    process.send_signal(signal.SIGKILL)
    process.wait()
    ours.close()
    assert list(tmp_path.iterdir()) == []


def test_what_others_have_made_stays(tmp_path):
    ours = Folder(str(tmp_path))
    prefix = ours.path.name.rpartition("-")[0]
    (tmp_path / "lockstitch-before").mkdir()  # of another start of the machine, or another one
    (tmp_path / f"{prefix}-file").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"{prefix}-link").symlink_to(tmp_path / "elsewhere")
    before = set(tmp_path.iterdir())
    remove_abandoned(str(tmp_path))
    assert set(tmp_path.iterdir()) == before
    ours.close()


def test_folder_of_another_user_stays(keeper, tmp_path, monkeypatch):
    process, path = keeper
    process.kill()
    process.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        remove_abandoned(str(tmp_path))
    assert path.exists()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forked_child_leaves_it_alone(tmp_path):
    ours = Folder(str(tmp_path))
    child = os.fork()
    if child == 0:
        ours.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert ours.path.exists()
    ours.close()
    ours.close()
    assert not ours.path.exists()


def test_without_locks_folders_are_made_and_none_is_taken_for_abandoned(tmp_path, monkeypatch):
    def refused(*_arguments):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refused)
    descriptors = len(os.listdir("/proc/self/fd"))
    with Folder(str(tmp_path)) as one, Folder(str(tmp_path)) as other:
        assert one.exists()
        assert other.exists()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
