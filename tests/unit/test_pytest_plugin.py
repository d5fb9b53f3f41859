from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
    import sys

    def test_torch_is_not_imported_for_nothing():
        assert "torch" not in sys.modules

    def test_horovod_is_ours(lockstitch_no_leaks, lockstitch_cluster):
        import horovod.torch as hvd
        import torch
        from lockstitch import rpc

        assert hvd.__name__ == "lockstitch.hvd.torch"
        cluster = lockstitch_cluster(2)
        with cluster["worker0"].active():
            assert rpc.rpc_sync("worker1", torch.add, (1, 2)) == 3

    def test_cluster_follows_the_script_of_mishaps(lockstitch_cluster, lockstitch_faults):
        import pytest
        from lockstitch import rpc
        from lockstitch.errors import PeerDiedError
        from lockstitch.wire.messages import Call

        lockstitch_faults.kill("worker1", after=Call)
        cluster = lockstitch_cluster(2)
        with cluster["worker0"].active(), pytest.raises(PeerDiedError, match="worker1"):
            rpc.rpc_sync("worker1", max, args=(1, 2))
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_of_a_user.py").write_text(textwrap.dedent(TESTS))
    plugin = () if has_entry_point() else ("-p", "lockstitch.pytest_plugin")
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), *plugin, *options]
    return subprocess.run(
        [*command, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )


def has_entry_point() -> bool:
    return any(entry.name == "lockstitch" for entry in entry_points(group="pytest11"))


@pytest.mark.slow
def test_tests_of_users_get_fixtures_and_the_option(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--lockstitch-replace", "horovod")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lockstitch in the place of: horovod" in done.stdout or "3 passed" in done.stdout


def test_unknown_name_is_an_error_of_usage(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--lockstitch-replace", "mpi")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--lockstitch-replace: nothing is known by the name 'mpi'" in done.stderr
