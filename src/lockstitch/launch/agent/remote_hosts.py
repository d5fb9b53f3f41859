"""The launcher's end of all hosts: one agent for each, begun with the first worker there.

Signs of life go to the agents from a thread as well. So a launcher that has to wait, because nobody
reads what it shows, does not pass for gone.
"""

from __future__ import annotations

import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lockstitch.clock import SYSTEM_CLOCK, earliest, seconds_until
from lockstitch.launch.agent.remote_host import Common, RemoteHost
from lockstitch.link.pulse import Pulse

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping

    from lockstitch.launch.agent.messages import Begin
    from lockstitch.launch.agent.remote_host import Listener, RemoteWorker
    from lockstitch.launch.process_loop import ProcessLoop
    from lockstitch.launch.remote import RemoteShell

PATIENCE: Final = 6.0
"""How many heartbeats an agent waits for a word of the launcher, which somebody may have stopped
for a moment (Ctrl-Z)."""


class RemoteHosts:
    """All hosts of a job, for its loop. `exported`: variables of this host, of which workers get
    those that matter; `heartbeat`: after how many seconds without a sign of life an agent is lost
    (0: never)."""

    def __init__(
        self,
        shell: RemoteShell,
        exported: Mapping[str, str],
        setup: Begin,
        loop: ProcessLoop,
        listener: Listener,
        heartbeat: float,
    ) -> None:
        self._shell = shell
        self._exported = exported
        self._common = Common(setup, loop, listener, Pulse(heartbeat, SYSTEM_CLOCK))
        self._hosts: dict[str, RemoteHost] = {}
        """The last of each name."""
        self._all: list[RemoteHost] = []
        """Those whose client has not ended, when somebody last looked."""
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._ping_seconds = heartbeat

    def __repr__(self) -> str:
        return f"<RemoteHosts · {len(self._all)} agents>"

    def start(
        self, worker: int, host: str, variables: Mapping[str, str], workers_here: int
    ) -> RemoteWorker:
        """Has a worker started on a host, one of `workers_here` that share its cores. Raises
        `OSError` where the command that reaches other hosts cannot be run."""
        found = self._hosts.get(host)
        if found is None or found.is_closing:
            found = self._hosts[host] = self._begin(host)
        return found.start(worker, variables, workers_here)

    def signal_all(self, number: signal.Signals) -> None:
        """Sends a signal to all workers of all hosts, and to what they have left behind."""
        for host in self._living():
            host.signal(number)

    def close(self) -> None:
        """No more workers will be started: each agent ends with the last of its workers. Harmless
        when repeated."""
        for host in self._living():
            host.close()
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join()

    def seconds_to_next(self) -> float | None:
        """How long until `pass_time` wants to be called; None for never."""
        deadline = min(self._common.deadlines.values(), default=None)
        return earliest(self._common.pulse.seconds_to_next(), seconds_until(deadline, SYSTEM_CLOCK))

    def pass_time(self) -> None:
        """Asks agents for a sign of life, and gives up those that are late."""
        lost = dict(self._common.pulse.pass_time())
        if lost:
            for host in self._living():
                if host.lines in lost:
                    host.lose(f"its agent is lost: {lost[host.lines]}")
        now = SYSTEM_CLOCK.now()
        for host, deadline in list(self._common.deadlines.items()):
            if now >= deadline:
                del self._common.deadlines[host]
                host.pass_deadline()

    # ------------------------------------------------------------ inside

    def _living(self) -> list[RemoteHost]:
        self._all = [host for host in self._all if not host.has_ended]
        return self._all

    def _begin(self, name: str) -> RemoteHost:
        command, script = self._shell.command(name, self._exported)
        client = subprocess.Popen(
            command,
            env=self._shell.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C is for the launcher alone
        )
        host = RemoteHost(name, client, script, self._common)
        self._all = [*self._living(), host]
        if self._thread is None and self._ping_seconds:
            self._thread = threading.Thread(
                target=self._ping_all, name="lockstitch agents", daemon=True
            )
            self._thread.start()
        return host

    def _ping_all(self) -> None:
        while not self._is_closed.wait(self._ping_seconds):
            for host in list(self._all):
                with suppress(OSError):  # its end is seen elsewhere
                    host.lines.ping()
