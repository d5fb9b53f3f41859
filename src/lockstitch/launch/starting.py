"""Starting a job's workers: as processes of this machine, or on another by a remote shell or as a
step of Slurm, whose process (`ssh`, `srun`) is then of this machine.

Both are starters (`launcher_link.conductor`): what cannot be started has ended at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstitch.launch.hosts import own_address
from lockstitch.launch.process import THREADS, WorkerProcess, elastic_environment
from lockstitch.launch.remote import RemoteShell
from lockstitch.launcher_link.client import ADDRESS, REACHED_AT
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence

    from lockstitch.launcher_link.slots import Slot
    from lockstitch.trust import Secret


@dataclass(frozen=True)
class WorkerCommand:
    """What each worker runs, with which variables besides its own. `secret` is among them as a file
    of this machine."""

    command: Sequence[str]
    inherited: Mapping[str, str]
    secret: Secret
    shell: RemoteShell = field(default_factory=RemoteShell)
    may_be_far: bool = False
    """Whether any worker may be on another host."""


class ProcessStarter:
    """Starts workers where their slots say. `follow(process)` is called for each process that was
    started, and `fail(worker, reason)` for a worker that could not be; `listen()` returns where
    workers of other hosts reach the launcher."""

    def __init__(
        self,
        worker_command: WorkerCommand,
        follow: Callable[[WorkerProcess], None],
        fail: Callable[[int, str], None],
        listen: Callable[[], str],
    ) -> None:
        self._worker_command = worker_command
        self._follow = follow
        self._fail = fail
        self._listen = listen
        self._far_address: str | None = None
        self._processes: dict[int, WorkerProcess] = {}

    def __repr__(self) -> str:
        return f"<ProcessStarter · {len(self._processes)} workers>"

    def start(self, worker: int, slot: Slot, environment: Mapping[str, str]) -> None:
        """Starts a worker (`Starter.start`)."""
        workers_here = max(1, len(self._processes))
        known = elastic_environment(environment, workers_here, self._worker_command.inherited)
        try:
            if self._worker_command.shell.starts_on(slot.host):
                process = self._elsewhere(worker, slot.host, known)
            else:
                process = self._here(worker, known)
        except OSError as error:
            self._fail(worker, f"it could not be started: {error}")
            return
        self._processes[worker] = process
        self._follow(process)

    def stop(self, worker: int, number: signal.Signals) -> None:
        """Ends a worker (`Starter.stop`)."""
        process = self._processes.get(worker)
        if process is not None:
            process.signal(number)

    def host_of(self, worker: int) -> str:
        """Returns the host of a worker that runs elsewhere, else an empty text."""
        process = self._processes.get(worker)
        return "" if process is None else process.host

    def note_end(self, worker: int) -> None:
        """Takes in that a worker's process has ended."""
        self._processes.pop(worker, None)

    def _here(self, worker: int, environment: dict[str, str]) -> WorkerProcess:
        if self._worker_command.may_be_far:
            environment[REACHED_AT] = environment["LOCKSTITCH_ADDRESS"] = own_address()
        return WorkerProcess(worker, self._worker_command.command, environment)

    def _elsewhere(self, worker: int, host: str, environment: dict[str, str]) -> WorkerProcess:
        if self._far_address is None:
            self._far_address = self._listen()
        environment.pop(FILE_VARIABLE, None)
        environment[VARIABLE] = self._worker_command.secret.text()
        environment[ADDRESS] = self._far_address
        shell = self._worker_command.shell
        environment[REACHED_AT] = environment["LOCKSTITCH_ADDRESS"] = shell.address_of(host)
        sharing = None
        if THREADS not in self._worker_command.inherited:
            sharing = 1 + sum(each.host == host for each in self._processes.values())
        command, script = shell.command(host, self._worker_command.command, environment, sharing)
        return WorkerProcess(worker, command, shell.environment(), script, host)
