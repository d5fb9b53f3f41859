"""A job whose workers come and go, as processes under this one: the `Conductor` decides and talks
to the workers, the `ProcessStarter` starts them here or by the agent of another host, and this job
follows them and shows what they say.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstitch.attach.sources import SOURCES
from lockstitch.clock import SYSTEM_CLOCK, earliest
from lockstitch.folders import Folder
from lockstitch.launch.discovery import Discovery
from lockstitch.launch.handover import secret_for
from lockstitch.launch.hosts import Slots, is_here
from lockstitch.launch.job import Job, TrackedWorker
from lockstitch.launch.process import without_ranks
from lockstitch.launch.remote import RemoteShell
from lockstitch.launch.starting import ProcessStarter, WorkerCommand
from lockstitch.launcher_link.conductor import Conductor, NewWorld, Surroundings
from lockstitch.launcher_link.rank_coordinator import CoordinatorOptions, Ended, HostsFound
from lockstitch.link.addresses import own_address
from lockstitch.link.pulse import heartbeat_seconds
from lockstitch.trust import find_secret

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from pathlib import Path

    from lockstitch.attach.values import OtherWait, Question
    from lockstitch.launch.outputs import Outputs
    from lockstitch.launch.screen import Screen


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

    @property
    def may_be_far(self) -> bool:
        """Whether any worker may be on another host."""
        return self.script is not None or any(self.shell.starts_on(host) for host, _ in self.hosts)


@dataclass(frozen=True)
class _Parts:
    """What the job has while it runs. `folder` holds the stores; only this user may enter it."""

    folder: Path
    conductor: Conductor
    starter: ProcessStarter
    discovery: Discovery | None


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
        self._begun: _Parts | None = None

    def begin(self) -> None:
        told = self.resources.enter_context(secret_for(os.environ))
        inherited = without_ranks({**os.environ, **told})
        secret = find_secret(None, None, inherited)
        assert secret is not None
        elasticity = self._elasticity
        # Only this user may enter: who reaches the store could mislead the ranks.
        folder = self.resources.enter_context(Folder())
        starter = ProcessStarter(
            WorkerCommand(self._command, inherited, elasticity.shell, elasticity.may_be_far),
            self.reach_hosts(elasticity.shell, self._command, secret, inherited),
            self,
            self._note_not_started,
            lambda: self._parts.conductor.server.listen(f"tcp:{own_address(None)}:0"),
        )
        surroundings = Surroundings(
            f"unix:{folder / 'launcher'}",
            self._meeting,
            self.selector,
            heartbeat=heartbeat_seconds(None, os.environ),
            tell_of_silence=self._note_silence,
            tell_of_wait=self.screen.note,
            tell_of_world=self._note_world,
            give_up=lambda: self.plan_end(after_seconds=0),
        )
        conductor = Conductor(elasticity.coordinator, secret, starter, surroundings)
        self.resources.callback(conductor.close)
        discovery = None if elasticity.script is None else self._discovery(elasticity.script)
        self._begun = _Parts(folder, conductor, starter, discovery)
        SOURCES.waits.append(self._waits)
        self.resources.callback(SOURCES.waits.remove, self._waits)
        if discovery is None:
            conductor.post(HostsFound(elasticity.hosts))
        else:
            discovery.ask()

    def _waits(self, _question: Question) -> list[OtherWait]:
        return self._parts.conductor.waits()

    def _discovery(self, script: str) -> Discovery:
        discovery = Discovery(script, self._elasticity.slots_per_host, SYSTEM_CLOCK, self)
        discovery.tell = lambda slots: self._parts.conductor.post(HostsFound(slots))
        discovery.complain = self.screen.note
        return discovery

    # ------------------------------------------------------------ the kind of job

    def goes_on(self) -> bool:
        return not self._parts.conductor.is_over

    def seconds_to_next(self) -> float | None:
        wait, discovery = super().seconds_to_next(), self._parts.discovery
        if not self.escalation.is_begun:
            wait = earliest(wait, self._parts.conductor.seconds_to_next())
            if discovery is not None:
                wait = earliest(wait, discovery.seconds_to_next())
        return wait

    def pass_time(self) -> None:
        super().pass_time()
        if not self.escalation.is_begun:
            self._parts.conductor.pass_time()
            if self._parts.discovery is not None:
                self._parts.discovery.ask()

    def signal_all(self, number: signal.Signals) -> None:
        super().signal_all(number)
        if self._parts.discovery is not None:
            self._parts.discovery.signal(number)

    def note_end(self, tracked: TrackedWorker, code: int) -> None:
        worker, conductor = tracked.process.rank, self._parts.conductor
        self._parts.starter.note_end(worker)
        if code != 0 and not conductor.is_dismissed(worker):
            self.note_failure(tracked, code)
            self.screen.note(f"worker {worker} has ended: {tracked.process.describe_end()}")
            if self.escalation.is_begun:
                self.plan_end(after_seconds=0)
        conductor.post(Ended(worker, is_well=code == 0))

    def conclude(self) -> int:
        reason = self._parts.conductor.reason
        if reason is not None:
            self.screen.note(f"the job has failed: {reason}")
        elif self._parts.conductor.is_well:
            self.failures.clear()
        return super().conclude() or (reason is not None)

    # ------------------------------------------------------------ for the conductor

    @property
    def _parts(self) -> _Parts:
        assert self._begun is not None
        return self._begun

    def _note_not_started(self, worker: int, reason: str) -> None:
        self.screen.note(f"worker {worker}: {reason}")
        self._parts.conductor.post(Ended(worker, is_well=False))

    def _note_silence(self, worker: int, why: str) -> None:
        host = self._parts.starter.host_of(worker)
        where = f" on host {host}" if host else ""
        self.screen.note(f"worker {worker}{where} is ended: {why}")

    def _note_world(self, world: NewWorld) -> None:
        self.failures.clear()  # the job has got over them
        if world.generation > 1:
            self.screen.note(f"the ranks meet anew: {len(world.hosts)} of them")

    def _meeting(self, world: NewWorld) -> str:
        """Returns where the ranks of a world meet: in a file of ours, or, where some are on other
        hosts, at rank 0."""
        shell = self._elasticity.shell
        if not any(map(shell.starts_on, world.hosts)):
            return f"file://{self._parts.folder}/world-{world.generation}"
        first = world.hosts[0]
        return (
            f"tcp://{own_address(None) if is_here(first) else shell.address_of(first)}:{world.port}"
        )
