"""What the command line says of hosts and numbers; more of what it refuses is in `test_cli`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import pytest
import typer

from lockstitch.launch.placing import (
    check_script,
    check_shell,
    named_hosts,
    number_of_workers,
    own_allocation,
    remote_shell,
)
from lockstitch.launch.remote import RemoteShell
from lockstitch.launch.slurm import Allocation, StepShell

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = {"shell": None, "ssh_port": None, "ssh_identity": None}
ALLOCATION = Allocation("7", (("n1", 2),), 1)


def test_hosts_come_from_the_option_or_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb slots=1\n")
    assert named_hosts(None, None) == ()
    assert named_hosts("a:2,b:1", None) == named_hosts(None, tmp_path / "hosts")
    with pytest.raises(typer.BadParameter, match="not both"):
        named_hosts("a", tmp_path / "hosts")


def test_without_a_number_there_are_as_many_workers_as_slots() -> None:
    where = (("a", 2), ("b", 3))
    given = ((4, 2), (None, 2), (None, None))
    assert [number_of_workers(*each, where, []) for each in given] == [4, 2, 5]
    with pytest.raises(typer.BadParameter, match="before PROGRAM"):
        number_of_workers(None, None, (), ["-n", "2"])


def test_hosts_are_reached_by_what_is_named_else_by_slurm_else_by_ssh() -> None:
    named = remote_shell({**NOTHING, "shell": "rsh -x"}, ALLOCATION)
    assert named.program == ("rsh", "-x")
    assert isinstance(remote_shell(NOTHING, ALLOCATION), StepShell)
    ssh = remote_shell({**NOTHING, "ssh_port": 22, "ssh_identity": "key"}, None)
    assert ssh.program == (*RemoteShell().program, "-p", "22", "-i", "key")


def test_what_is_to_be_run_must_be_there(tmp_path: Path) -> None:
    check_script(f"{shlex.quote(sys.executable)} -V")
    with pytest.raises(typer.BadParameter, match="no such command"):
        check_script(str(tmp_path / "script"))
    nowhere = RemoteShell(("lockstitch-no-such-shell",))
    check_shell(nowhere, (("localhost", 2),))
    with pytest.raises(typer.BadParameter, match="no command 'lockstitch-no-such-shell'"):
        check_shell(nowhere, (("elsewhere.invalid", 2),))


def test_outside_of_slurm_there_is_no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert own_allocation() is None
