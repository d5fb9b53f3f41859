"""A job of N workers on several hosts that stand and fall together.

Workers are numbered host by host. Those of other hosts are started there by a remote shell, and get
the job's secret by its input. They all meet at the host of rank 0.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from lockstitch.launch.handover import secret_for
from lockstitch.launch.hosts import is_here, own_address
from lockstitch.launch.local import LocalJob
from lockstitch.launch.process import THREADS, WorkerProcess, WorkerRanks, environment_among_hosts
from lockstitch.link.ports import find_ports
from lockstitch.link.sockets import HeldPort
from lockstitch.trust import find_secret
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.launch.hosts import Slots
    from lockstitch.launch.outputs import Outputs
    from lockstitch.launch.remote import RemoteShell
    from lockstitch.launch.screen import Screen

# Below those that a system gives away by itself, of a host that cannot be asked which are free.
_PORTS = range(20_000, 32_000)


class MultiHostJob(LocalJob):
    """A job on several hosts; `run()` returns the exit status. `where`: hosts that have at least
    `workers` slots, and how they are reached."""

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        where: tuple[Slots, RemoteShell],
        screen: Screen,
        grace_seconds: float,
        outputs: Outputs | None,
    ) -> None:
        super().__init__(command, workers, screen, grace_seconds, outputs)
        self._hosts, self._shell = where

    def begin(self) -> None:
        secret = self.resources.enter_context(secret_for(os.environ))
        inherited = {**os.environ, **secret}
        text = find_secret(None, None, inherited)
        assert text is not None
        first, _ = self._hosts[0]
        ports = find_ports(None, os.environ)
        if is_here(first):
            port = self.resources.enter_context(HeldPort(ports=ports)).number
        else:
            port = random.choice(ports or _PORTS)
        master = (self._address(first), port)
        for ranks in assign_ranks(self._hosts, self._workers):
            environment = environment_among_hosts(ranks, master, inherited)
            environment["LOCKSTITCH_ADDRESS"] = self._address(ranks.host)
            if self._shell.starts_on(ranks.host):
                environment.pop(FILE_VARIABLE, None)
                environment[VARIABLE] = text.text()
                sharing = None if THREADS in inherited else ranks.local_size
                command, script = self._shell.command(
                    ranks.host, self._command, environment, sharing
                )
                known = self._shell.environment()
                process = WorkerProcess(ranks.rank, command, known, script, ranks.host)
            else:
                process = WorkerProcess(ranks.rank, self._command, environment)
            self.start(process)

    def _address(self, host: str) -> str:
        """Returns where the others of these hosts reach one."""
        if not is_here(host):
            return self._shell.address_of(host)
        others = (other for other, _ in self._hosts if not is_here(other))
        return own_address(next(others, None))


def assign_ranks(hosts: Slots, workers: int) -> list[WorkerRanks]:
    """Returns the ranks of each worker, numbered host by host."""
    taken: list[tuple[int, int, int]] = []
    for number, (_, count) in enumerate(hosts):
        here = min(count, workers - len(taken))
        taken += [(number, index, here) for index in range(here)]
    made = []
    for rank, (number, index, here) in enumerate(taken):
        alike = [other for other, other_index, _ in taken if other_index == index]
        name = hosts[number][0]
        made.append(WorkerRanks(rank, workers, name, index, here, alike.index(number), len(alike)))
    return made
