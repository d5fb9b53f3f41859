"""A job of N workers on several hosts that stand and fall together.

Workers are numbered host by host. Those of other hosts are started there by an agent (`agent`), one
for each host. They all meet at the host of rank 0.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from lockstitch.launch.handover import secret_for
from lockstitch.launch.hosts import is_here
from lockstitch.launch.local import LocalJob
from lockstitch.launch.process import WorkerProcess, with_defaults
from lockstitch.launcher_link.fixed_ranks import ranks_on, variables_of_ranks
from lockstitch.link.addresses import own_address
from lockstitch.link.ports import find_ports
from lockstitch.link.sockets import HeldPort
from lockstitch.trust import find_secret

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
        inherited = {**os.environ, **self.resources.enter_context(secret_for(os.environ))}
        secret = find_secret(None, None, inherited)
        assert secret is not None
        hosts = self.reach_hosts(self._shell, self._command, secret, inherited)
        first, _ = self._hosts[0]
        ports = find_ports(None, os.environ)
        if is_here(first):
            port = self.resources.enter_context(HeldPort(ports=ports)).number
        else:
            port = random.choice(ports or _PORTS)
        master = (self._address(first), port)
        slots = [host for host, count in self._hosts for _ in range(count)]
        for ranks in ranks_on(slots[: self._workers]):
            variables = variables_of_ranks(ranks, master)
            variables["LOCKSTITCH_ADDRESS"] = self._address(ranks.host)
            if self._shell.starts_on(ranks.host):
                self.track(hosts.start(ranks.rank, ranks.host, variables, ranks.local_size))
            else:
                environment = with_defaults(variables, ranks.local_size, inherited)
                self.start(WorkerProcess(ranks.rank, self._command, environment))

    def _address(self, host: str) -> str:
        """Returns where the others of these hosts reach one."""
        if not is_here(host):
            return self._shell.address_of(host)
        others = (other for other, _ in self._hosts if not is_here(other))
        return own_address(next(others, None))
