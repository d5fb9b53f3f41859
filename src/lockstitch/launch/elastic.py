"""A job whose workers come and go: carries out what the `RankCoordinator` decides.

Each worker that wants a rank says so to the launcher and is told one. Workers of this machine are
processes of ours, those of another are started there by a remote shell, whose process is ours.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.folders import Folder
from lockstitch.launch.discovery import Discovery
from lockstitch.launch.handover import secret_for
from lockstitch.launch.hosts import Slots, is_here, own_address
from lockstitch.launch.job import Job, TrackedWorker
from lockstitch.launch.process import WorkerProcess, elastic_environment
from lockstitch.launch.remote import RemoteShell
from lockstitch.launcher_link.client import ADDRESS, PURPOSE, REACHED_AT, WORKER
from lockstitch.launcher_link.messages import Message, RankAssignment, Ready
from lockstitch.launcher_link.rank_coordinator import (
    CameReady,
    CoordinatorOptions,
    Ended,
    Event,
    GiveUp,
    HostsFound,
    Instruction,
    RankCoordinator,
    Start,
    Stop,
    Tell,
    TimePassed,
)
from lockstitch.launcher_link.server import LauncherServer
from lockstitch.trust import find_secret
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lockstitch.launch.outputs import Outputs
    from lockstitch.launch.screen import Screen
    from lockstitch.launcher_link.slots import Slot
    from lockstitch.trust import Secret


@dataclass(frozen=True)
class Elasticity:
    """Where workers may run, and how many there are to be."""

    coordinator: CoordinatorOptions
    hosts: Slots = ()
    script: str | None = None
    """Prints the hosts, instead of `hosts`."""
    slots_per_host: int = 1
    """Of hosts for which the script says no number."""
    shell: RemoteShell = field(default_factory=RemoteShell)


@dataclass(frozen=True)
class _Resources:
    """What the job has while it runs. `folder` holds the stores; only this user may enter it."""

    inherited: dict[str, str]
    secret: Secret
    folder: Path
    server: LauncherServer


class ElasticJob(Job):
    """A job whose workers come and go; `run()` returns the exit status."""

    def __init__(
        self,
        command: Sequence[str],
        elasticity: Elasticity,
        screen: Screen,
        grace_seconds: float,
        outputs: Outputs | None = None,
    ) -> None:
        super().__init__(screen, grace_seconds, outputs)
        self._command = command
        self._elasticity = elasticity
        self._processes: dict[int, WorkerProcess] = {}
        self._ports: dict[int, int] = {}
        self._far_address: str | None = None
        hosts = elasticity.hosts
        self._may_be_far = elasticity.script is not None or not all(is_here(h) for h, _ in hosts)
        self._discovery: Discovery | None = None
        self._reason: str | None = None
        self._coordinator = RankCoordinator(elasticity.coordinator, SYSTEM_CLOCK.now())
        self._begun: _Resources | None = None

    def begin(self) -> None:
        inherited = {**os.environ, **self.resources.enter_context(secret_for(os.environ))}
        secret = find_secret(None, None, inherited)
        assert secret is not None
        # Only this user may enter: who reaches the store could mislead the ranks.
        folder = self.resources.enter_context(Folder())
        server = LauncherServer(
            self.selector, secret.of(PURPOSE), self._hear, f"unix:{folder / 'launcher'}"
        )
        self.resources.callback(server.close)
        self._begun = _Resources(inherited, secret, folder, server)
        if self._elasticity.script is None:
            self._handle(HostsFound(self._elasticity.hosts))
        else:
            self._begin_discovery(self._elasticity.script)

    def _begin_discovery(self, script: str) -> None:
        discovery = self._discovery = Discovery(
            script,
            self._elasticity.slots_per_host,
            SYSTEM_CLOCK,
            self.call_when_readable,
            self.forget,
        )
        discovery.tell = lambda slots: self._handle(HostsFound(slots))
        discovery.complain = self.screen.note
        discovery.ask()

    # ------------------------------------------------------------ the kind of job

    def goes_on(self) -> bool:
        return not self._coordinator.is_over

    def seconds_to_next(self) -> float | None:
        waits = []
        if self._coordinator.deadline is not None:
            waits.append(max(0.0, self._coordinator.deadline - SYSTEM_CLOCK.now()))
        server = self._running.server
        others = (server, self._discovery) if self._discovery else (server,)
        waits += [wait for each in others if (wait := each.seconds_to_next()) is not None]
        return min(waits, default=None)

    def pass_time(self) -> None:
        deadline = self._coordinator.deadline
        if deadline is not None and SYSTEM_CLOCK.now() >= deadline:
            self._handle(TimePassed())
        self._running.server.pass_time()
        if self._discovery is not None:
            self._discovery.ask()

    def note_end(self, tracked: TrackedWorker, code: int) -> None:
        worker = tracked.process.rank
        self._processes.pop(worker, None)
        if code != 0 and not self._coordinator.is_dismissed(worker):
            self.note_failure(tracked, code)
            self.screen.note(f"worker {worker} has ended: {tracked.process.describe_end()}")
            if self.escalation.is_begun:
                self.plan_end(after_seconds=0)
        self._handle(Ended(worker, is_well=code == 0))

    def note_other_end(self, pid: int, code: int) -> None:
        if self._discovery is not None:
            self._discovery.note_end(pid, code)

    def conclude(self) -> int:
        if self._reason is not None:
            self.screen.note(f"the job has failed: {self._reason}")
        elif self._coordinator.is_well:
            self.failures.clear()
        return super().conclude() or (self._reason is not None)

    # ------------------------------------------------------------ carrying out

    @property
    def _running(self) -> _Resources:
        assert self._begun is not None
        return self._begun

    def _hear(self, worker: int, message: Message) -> None:
        if isinstance(message, Ready):
            self._ports[worker] = message.port
            self._handle(CameReady(worker))

    def _handle(self, event: Event) -> None:
        instructions = self._coordinator.handle(event, SYSTEM_CLOCK.now())
        placed = {
            each.message.rank: each.worker
            for each in instructions
            if isinstance(each, Tell) and isinstance(each.message, RankAssignment)
        }
        for instruction in instructions:
            self._follow(instruction, placed)

    def _follow(self, instruction: Instruction, placed: Mapping[int, int]) -> None:
        if isinstance(instruction, Start):
            self._start(instruction.worker, instruction.slot)
        elif isinstance(instruction, Tell):
            message = instruction.message
            if isinstance(message, RankAssignment):
                self._note_world(message)
                message = replace(message, store=self._store(message.generation, placed))
            self._running.server.tell(instruction.worker, message)
        elif isinstance(instruction, Stop):
            process = self._processes.get(instruction.worker)
            if process is not None:
                process.signal(signal.SIGKILL)
        elif isinstance(instruction, GiveUp):
            self._reason = instruction.reason
            self.plan_end(after_seconds=0)

    def _note_world(self, assignment: RankAssignment) -> None:
        if assignment.rank == 0:
            self.failures.clear()  # the job has got over them
            if assignment.generation > 1:
                self.screen.note(f"the ranks meet anew: {assignment.size} of them")

    def _store(self, generation: int, placed: Mapping[int, int]) -> str:
        """Returns where the ranks of a world meet: in a file of ours, or, where some are on other
        hosts, at rank 0. `placed`: the worker of each rank."""
        hosts = [self._coordinator.host_of(worker) for worker in placed.values()]
        if all(map(is_here, hosts)):
            return f"file://{self._running.folder}/world-{generation}"
        first = placed[0]
        host = self._coordinator.host_of(first)
        address = own_address() if is_here(host) else host
        return f"tcp://{address}:{self._ports[first]}"

    def _start(self, worker: int, slot: Slot) -> None:
        per_host, running = max(1, len(self._processes)), self._running
        environment = elastic_environment(slot.host, slot.index, per_host, running.inherited)
        environment[WORKER] = str(worker)
        if is_here(slot.host):
            environment[ADDRESS] = running.server.address
            if self._may_be_far:
                environment[REACHED_AT] = own_address()
            process = WorkerProcess(worker, self._command, environment)
        else:
            shell = self._elasticity.shell
            if self._far_address is None:
                self._far_address = running.server.listen(f"tcp:{own_address()}:0")
            environment.pop(FILE_VARIABLE, None)
            environment[VARIABLE] = running.secret.text()
            environment.update({ADDRESS: self._far_address, REACHED_AT: slot.host})
            command, script = shell.command(slot.host, self._command, environment)
            process = WorkerProcess(worker, command, dict(os.environ), script, slot.host)
        self._processes[worker] = process
        self.start(process)
