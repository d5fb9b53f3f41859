"""Where the workers of a job run, as the command line says, and how many there are. What does not
fit is refused with the option's name (`typer.BadParameter`)."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lockstitch.launch.hosts import Slots, parse_hostfile, parse_hosts
from lockstitch.launch.remote import RemoteShell
from lockstitch.launch.slurm import Allocation, StepShell

if TYPE_CHECKING:
    from collections.abc import Mapping


def named_hosts(hosts: str | None, hostfile: Path | None) -> Slots:
    """Returns the hosts that were named, perhaps none."""
    if hosts is not None and hostfile is not None:
        raise typer.BadParameter("give hosts or a file of them, not both", param_hint="-H")
    try:
        if hosts is not None:
            return parse_hosts(hosts)
        return () if hostfile is None else parse_hostfile(hostfile.read_text())
    except OSError as error:
        raise typer.BadParameter(
            f"{hostfile}: {error.strerror}", param_hint="--hostfile"
        ) from error
    except ValueError as error:
        hint = "-H" if hosts is not None else "--hostfile"
        raise typer.BadParameter(str(error), param_hint=hint) from error


def own_allocation() -> Allocation | None:
    """Returns the allocation of Slurm whose nodes are the hosts; None where there is none."""
    try:
        allocation = Allocation.read(os.environ)
        if allocation is not None:
            allocation.check()
    except ValueError as error:
        raise typer.BadParameter(
            f"{error}; -H says where to run instead (-H localhost:4: here)", param_hint="-H"
        ) from error
    return allocation


def check_room(workers: int, allocation: Allocation) -> None:
    """Raises `BadParameter` where an allocation has fewer tasks."""
    tasks = sum(count for _, count in allocation.slots)
    if workers > tasks:
        raise typer.BadParameter(
            f"{workers} workers do not fit into the {tasks} tasks of allocation {allocation.job} "
            f"of Slurm ({allocation.described()}); ask Slurm for more (--ntasks={workers}), or say "
            f"by -H where to run (-H localhost:{workers}: all of them here)",
            param_hint="-n",
        )


def check_script(script: str) -> None:
    """Raises `BadParameter` for a script that cannot be run: it would be tried every second."""
    words = [script] if Path(script).exists() else shlex.split(script)
    if not words or shutil.which(words[0]) is None:
        is_file = bool(words) and Path(words[0]).is_file()
        reason = "may not be executed (chmod +x)" if is_file else "there is no such command"
        raise typer.BadParameter(f"{script}: {reason}", param_hint="--host-discovery-script")


def number_of_workers(
    workers: int | None, min_workers: int | None, where: Slots, own_arguments: list[str]
) -> int:
    """Returns how many workers there are at first. `own_arguments`: those of the program."""
    if workers is not None:
        return workers
    if min_workers is not None:
        return min_workers
    if where:
        return sum(count for _, count in where)
    is_late = not {"-n", "-np", "--workers", "--num-proc"}.isdisjoint(own_arguments)
    raise typer.BadParameter(
        "say how many workers"
        + (": before PROGRAM, for what stands after it is the program's own" if is_late else ""),
        param_hint="-n",
    )


def remote_shell(given: Mapping[str, Any], allocation: Allocation | None) -> RemoteShell:
    """Returns what starts workers on other hosts. `given`: the options."""
    if given["shell"] is not None:
        return RemoteShell(tuple(shlex.split(given["shell"])))
    if allocation is not None:
        return StepShell()
    words = list(RemoteShell().program)
    for option, name in (("-p", "ssh_port"), ("-i", "ssh_identity")):
        if given[name] is not None:
            words += [option, str(given[name])]
    return RemoteShell(tuple(words))


def check_shell(remote: RemoteShell, where: Slots) -> None:
    """Raises `BadParameter` where the command that starts workers on other hosts is not here."""
    is_far = any(remote.starts_on(host) for host, _ in where)
    if is_far and not shutil.which(remote.program[0]):
        name, here = remote.program[0], socket.gethostname()
        reason = f"{here} has no command {name!r} to start workers on {where[0][0]} by"
        raise typer.BadParameter(reason, param_hint="--remote-shell")
