"""Starting the workers of an elastic job: as processes of this machine, or on another host by its
agent (`agent`).

This is a starter (`launcher_link.conductor`): what cannot be started has ended at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstitch.launch.process import WorkerProcess, with_defaults
from lockstitch.launch.remote import RemoteShell
from lockstitch.launcher_link.client import ADDRESS, REACHED_AT
from lockstitch.link.addresses import own_address

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence

    from lockstitch.launch.agent.remote_hosts import RemoteHosts
    from lockstitch.launch.job import Job
    from lockstitch.launch.process import Worker
    from lockstitch.launcher_link.slots import Slot


@dataclass(frozen=True)
class WorkerCommand:
    """What each worker runs, with which variables besides its own; among them the file with the
    job's secret."""

    command: Sequence[str]
    inherited: Mapping[str, str]
    shell: RemoteShell = field(default_factory=RemoteShell)
    may_be_far: bool = False
    """Whether any worker may be on another host."""


class ProcessStarter:
    """Starts workers where their slots say. `fail(worker, reason)` is called for a worker that
    could not be started; `listen()` returns where workers of other hosts reach the launcher."""

    def __init__(
        self,
        worker_command: WorkerCommand,
        hosts: RemoteHosts,
        follower: Job,
        fail: Callable[[int, str], None],
        listen: Callable[[], str],
    ) -> None:
        self._worker_command = worker_command
        self._hosts = hosts
        self._follower = follower
        self._fail = fail
        self._listen = listen
        self._far_address: str | None = None
        self._workers: dict[int, Worker] = {}
        self._on_host: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<ProcessStarter · {len(self._workers)} workers>"

    def start(self, worker: int, slot: Slot, environment: Mapping[str, str]) -> None:
        """Starts a worker (`Starter.start`)."""
        try:
            if self._worker_command.shell.starts_on(slot.host):
                self._start_elsewhere(worker, slot.host, dict(environment))
            else:
                self._start_here(worker, dict(environment))
        except OSError as error:
            self._fail(worker, f"it could not be started: {error}")

    def stop(self, worker: int, number: signal.Signals) -> None:
        """Ends a worker (`Starter.stop`)."""
        found = self._workers.get(worker)
        if found is not None:
            found.signal(number)

    def host_of(self, worker: int) -> str:
        """Returns the host of a worker that runs elsewhere, else an empty text."""
        found = self._workers.get(worker)
        return "" if found is None else found.host

    def note_end(self, worker: int) -> None:
        """Takes in that a worker's process has ended."""
        found = self._workers.pop(worker, None)
        if found is not None:
            self._on_host[found.host] -= 1

    def _start_here(self, worker: int, variables: dict[str, str]) -> None:
        if self._worker_command.may_be_far:
            variables[REACHED_AT] = variables["LOCKSTITCH_ADDRESS"] = own_address(None)
        inherited = self._worker_command.inherited
        environment = with_defaults(variables, self._on_host[""] + 1, inherited)
        process = WorkerProcess(worker, self._worker_command.command, environment)
        self._note(process)
        self._follower.start(process)

    def _start_elsewhere(self, worker: int, host: str, variables: dict[str, str]) -> None:
        if self._far_address is None:
            self._far_address = self._listen()
        variables[ADDRESS] = self._far_address
        address = self._worker_command.shell.address_of(host)
        variables[REACHED_AT] = variables["LOCKSTITCH_ADDRESS"] = address
        made = self._hosts.start(worker, host, variables, self._on_host[host] + 1)
        self._note(made)
        self._follower.track(made)

    def _note(self, worker: Worker) -> None:
        self._workers[worker.rank] = worker
        self._on_host[worker.host] += 1
