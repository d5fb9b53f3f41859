"""A job: workers that are started, followed, shown and ended, in the loop of a launcher
(`process_loop`).

Which workers there are, and what follows from the end of one, say the kinds of jobs: `local`, whose
workers stand and fall together, and `elastic`, whose workers come and go. Those of other hosts are
followed there by agents (`agent`), which tell of them.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstitch.attach.presence import PRESENCE
from lockstitch.attach.sources import SOURCES
from lockstitch.attach.values import LaunchedWorker
from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.endings import Mark, take_mark, take_step
from lockstitch.launch.agent.messages import Begin
from lockstitch.launch.agent.remote_hosts import PATIENCE, RemoteHosts
from lockstitch.launch.memory_kills import MemoryKills
from lockstitch.launch.process import exit_status
from lockstitch.launch.process_loop import ProcessLoop
from lockstitch.launch.progress import Progress
from lockstitch.launch.screen import LineBuffer
from lockstitch.launch.stderr_tail import StderrTail
from lockstitch.launch.stopping import STOP_SIGNALS
from lockstitch.link.pulse import heartbeat_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockstitch.launch.agent.remote_host import RemoteWorker
    from lockstitch.launch.outputs import Outputs
    from lockstitch.launch.process import Worker, WorkerProcess
    from lockstitch.launch.process_loop import StreamName
    from lockstitch.launch.remote import RemoteShell
    from lockstitch.launch.screen import Screen
    from lockstitch.trust import Secret

_OF_SSH = 255
# How long a worker whose program fails without a mark may take to end after its last word.
_LAST_WORD_SECONDS = 2.0
# How long it may take those who are to blame to end, where others have failed because of them.
_CULPRIT_SECONDS = 5.0
# What Python ends with where an exception ends a program.
_OF_EXCEPTIONS = 1


@dataclass
class TrackedWorker:
    """A worker that the job follows, what it has said, and how it has ended. `lines`: what is not
    yet a whole line, of each of its two streams."""

    process: Worker
    lines: dict[StreamName, LineBuffer] = field(
        default_factory=lambda: {"stdout": LineBuffer(), "stderr": LineBuffer()}
    )
    stderr_tail: StderrTail = field(default_factory=StderrTail)
    unreached_host: str = ""
    """Where it should have run, if no agent has begun there."""
    spoke_last_at: float | None = None
    mark: Mark | None = None
    """How its program ended, as it has said itself, and when that was."""
    marked_at: float = 0.0
    started_at: float = field(default_factory=time.time)
    """In seconds since the epoch."""
    ended_at: float | None = None
    why_killed: str = ""
    """What the kernel says of a worker that SIGKILL has ended."""

    @property
    def how_it_ended(self) -> str:
        """In words; empty while it runs."""
        if self.ended_at is None:
            return ""
        how = self.process.describe_end()
        return f"{how}: {self.why_killed}" if self.why_killed else how


@dataclass(frozen=True)
class Failure:
    """How a worker has failed, and what says who is to blame.

    A worker that failed because a peer was gone (`is_of_lost_peer`) is not to blame where another
    has failed by itself. Of those alike the first is, by `order`: when its program was over, as it
    has marked, since its process may take a while to end, and a peer that fails because of it may
    be gone sooner. Without a mark its last word counts, if that was shortly before its end.
    """

    worker: int
    unreached_host: str
    code: int
    how: str
    order: float
    is_of_lost_peer: bool
    stderr_tail: StderrTail
    why: str = ""
    """What the kernel says of one that was killed."""

    @property
    def blame(self) -> tuple[bool, float]:
        """The key for comparing failures: the least is the one to blame."""
        return self.is_of_lost_peer, self.order


class Job(ProcessLoop):
    """A job that is run from one thread. A kind of job defines `begin` and `note_end`, and what
    else differs.

    `outputs`: files to which what workers say is written too.
    """

    def __init__(
        self, screen: Screen, grace_seconds: float, outputs: Outputs | None = None
    ) -> None:
        super().__init__(grace_seconds)
        self.screen = screen
        self.tracked_workers: dict[int, TrackedWorker] = {}
        """By rank; in an elastic job by number."""
        self.failures: list[Failure] = []
        self.stopped_by: signal.Signals | None = None
        self.hosts: RemoteHosts | None = None
        """The other hosts of a job that has any."""
        self._running = 0
        self._outputs = outputs
        self._lost: OSError | None = None
        """Why what workers say cannot be written to files."""
        self._memory_kills = MemoryKills()
        self._progress = Progress(SYSTEM_CLOCK)
        self._signalled_since: float | None = None
        self._stopped: list[int] = []
        """The ranks of workers that stood still when all were told to end."""

    # ------------------------------------------------------------ what kinds of jobs define

    def note_end(self, tracked: TrackedWorker, code: int) -> None:
        """Called when a worker has ended by itself, not because it was told to stop."""
        raise NotImplementedError

    # ------------------------------------------------------------ the loop

    def run(self) -> int:
        """Runs the job; returns its exit status (see `LocalJob`). Raises `OSError` where it has
        ended because what workers say can be shown, or written to files, no more."""
        self._let_others_look()
        self.run_loop()
        status = self.conclude()
        lost = self._lost or self.screen.lost
        if lost is not None and self.stopped_by is None:
            raise lost
        return status

    def _let_others_look(self) -> None:
        """Has commands such as `lockstitch status` find this job, and answers them in the loop."""
        SOURCES.launched = self._launched
        endpoint = PRESENCE.show_launcher()
        if endpoint is not None:
            self.resources.callback(PRESENCE.close)
            self.selector.register(endpoint, selectors.EVENT_READ, endpoint.take)

    def _launched(self) -> list[LaunchedWorker]:
        return [
            LaunchedWorker(
                each.process.rank,
                each.process.pid,
                each.process.host,
                each.started_at,
                None
                if each.ended_at is None
                else time.time() - (SYSTEM_CLOCK.now() - each.ended_at),
                each.how_it_ended,
            )
            for each in list(self.tracked_workers.values())
        ]

    def seconds_to_next(self) -> float | None:
        return None if self.hosts is None else self.hosts.seconds_to_next()

    def pass_time(self) -> None:
        if self._lost or self.screen.lost:
            self.escalation.begin(signal.SIGTERM, after_seconds=0)
            self.escalation.within(0)
        if self.hosts is not None:
            self.hosts.pass_time()

    def start(self, process: WorkerProcess) -> None:
        """Follows a process from now on."""
        self.track(process)
        self._memory_kills.follow(process.pid)
        self.follow(process)

    def track(self, worker: Worker) -> None:
        """Expects something of a worker from now on."""
        self.tracked_workers[worker.rank] = TrackedWorker(worker)
        self._running += 1

    def is_busy(self) -> bool:
        return self._running > 0

    def note(self, text: str) -> None:
        """Shows a remark."""
        self.screen.note(text)

    def reach_hosts(
        self,
        shell: RemoteShell,
        command: Sequence[str],
        secret: Secret,
        inherited: Mapping[str, str],
    ) -> RemoteHosts:
        """Returns the other hosts, each of which is reached with its first worker. `inherited`:
        variables of this host, of which the workers there get those that matter."""
        heartbeat = heartbeat_seconds(None, os.environ)
        patience = PATIENCE * heartbeat
        grace = self.escalation.grace_seconds
        setup = Begin(tuple(command), secret.text(), grace, patience)
        self.hosts = RemoteHosts(shell, inherited, setup, self, self, heartbeat)
        self.resources.callback(self.hosts.close)
        return self.hosts

    # ------------------------------------------------------------ what workers say

    def take_output(self, worker: int, stream: StreamName, chunk: bytes) -> None:
        tracked = self.tracked_workers[worker]
        lines = tracked.lines[stream]
        for line in lines.feed(chunk):
            self._take(tracked, stream, line)
        self.screen.passing(worker, stream, lines.passing)

    def _take(self, tracked: TrackedWorker, stream: StreamName, line: bytes) -> None:
        if stream == "stderr":
            line, step = take_step(line)
            if step is not None:
                self.screen.progress(self._progress.note(tracked.process.rank, step))
            line, mark = take_mark(line)
            if mark is not None:
                self._note_mark(tracked, mark)
            if (mark or step) and not line:
                return
        self._show(tracked, stream, line)

    def _note_mark(self, tracked: TrackedWorker, mark: Mark) -> None:
        """Keeps how a program has ended: a worker's own mark says more than that of a process that
        it has started."""
        if tracked.mark is None or mark.is_of_worker or not tracked.mark.is_of_worker:
            tracked.mark, tracked.marked_at = mark, SYSTEM_CLOCK.now()

    def _show(self, tracked: TrackedWorker, stream: StreamName, line: bytes) -> None:
        self.screen.line(tracked.process.rank, stream, line)
        if self._outputs is not None:
            try:
                self._outputs.line(tracked.process.rank, stream, line)
            except OSError as error:
                self._lost = self._lost or error
        if stream == "stderr":
            tracked.stderr_tail.add(line)
            tracked.spoke_last_at = SYSTEM_CLOCK.now()

    # ------------------------------------------------------------ who ended

    def take_end(self, process: WorkerProcess) -> None:
        PRESENCE.forget_child(process.pid)
        self._take_end(self.tracked_workers[process.rank], process.exit_code or 0)

    def take_end_elsewhere(self, worker: RemoteWorker) -> None:
        """Called when a worker of another host has ended, after the last of its output."""
        tracked = self.tracked_workers[worker.rank]
        if worker.instead is not None:
            tracked.stderr_tail, tracked.unreached_host = worker.instead, worker.host
        self._take_end(tracked, worker.exit_code or 0)

    def _take_end(self, tracked: TrackedWorker, code: int) -> None:
        self._running -= 1
        for stream, lines in tracked.lines.items():
            if rest := lines.flush():
                self._take(tracked, stream, rest)
        tracked.ended_at = SYSTEM_CLOCK.now()
        if not self._signalled_since:
            tracked.why_killed = self._why_killed(tracked.process, code)
            self.note_end(tracked, code)
        elif tracked.mark and tracked.marked_at < self._signalled_since:
            self._note_late_end(tracked, tracked.mark, code)

    def _note_late_end(self, tracked: TrackedWorker, mark: Mark, code: int) -> None:
        """Notes the end of a worker that was told to stop when its program was over already, and
        perhaps had failed."""
        if code > 0:
            self.note_failure(tracked, code)
        elif mark.what and code and not mark.is_of_lost_peer:
            how = f"{mark.what}, and it did not end by itself"
            self.note_failure(tracked, _OF_EXCEPTIONS, how)

    def note_failure(self, tracked: TrackedWorker, code: int, how: str = "") -> None:
        """Keeps what is shown of a failed worker in the end."""
        now, process, mark = SYSTEM_CLOCK.now(), tracked.process, tracked.mark
        order = max(tracked.spoke_last_at or now, now - _LAST_WORD_SECONDS)
        self.failures.append(
            Failure(
                process.rank,
                tracked.unreached_host,
                code,
                how or process.describe_end(),
                tracked.marked_at if mark else order,
                mark is not None and mark.is_of_lost_peer,
                tracked.stderr_tail,
                tracked.why_killed,
            )
        )

    def _why_killed(self, process: Worker, code: int) -> str:
        if code != -signal.SIGKILL:
            return ""
        return process.why or ("" if process.host else self._memory_kills.describe(process.pid))

    def plan_end(self, after_seconds: float) -> None:
        """Has all workers that are left told to stop; later where nobody has failed yet but because
        a peer was gone. May be said again when somebody else has failed."""
        self.escalation.begin(signal.SIGTERM, _CULPRIT_SECONDS)
        if not self.failures or not all(each.is_of_lost_peer for each in self.failures):
            self.escalation.within(after_seconds)

    def running(self) -> list[Worker]:
        """Returns the workers that have not ended."""
        processes = (tracked.process for tracked in self.tracked_workers.values())
        return [process for process in processes if process.exit_code is None]

    # ------------------------------------------------------------ how it is ended

    def obey(self, number: int) -> None:
        if number in STOP_SIGNALS:
            self.stopped_by = self.stopped_by or signal.Signals(number)
            first = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
            self.screen.note(f"{signal.Signals(number).name}: ending all workers")
            self.escalation.begin(first, after_seconds=0)
            self.escalation.hurry()
        elif number == signal.SIGUSR1:
            for process in self.running():
                if not process.ask_what_it_waits_for():
                    self.screen.note(f"worker {process.rank} has not begun to listen")

    def signal_all(self, number: signal.Signals) -> None:
        if self._signalled_since is None:
            self._signalled_since = SYSTEM_CLOCK.now()
            self._stopped = [each.rank for each in self.running() if each.is_stopped]
        super().signal_all(number)
        if self.hosts is not None:
            self.hosts.signal_all(number)

    def wind_up(self) -> None:
        super().wind_up()
        if self.hosts is not None:
            self.hosts.close()

    # ------------------------------------------------------------ how it ended

    def conclude(self) -> int:
        """Shows what went wrong; returns the exit status."""
        if not self.failures:
            return 0 if self.stopped_by is None else 128 + self.stopped_by
        first, *others = sorted(self.failures, key=lambda failure: failure.blame)
        self.screen.failure(first.worker, first.how, first.stderr_tail.telling())
        alike: dict[str, list[int]] = {}
        for failure in others:
            alike.setdefault(failure.how, []).append(failure.worker)
        for how, workers in alike.items():
            self.screen.note(f"{_workers(workers)} failed too: {how}")
        if first.why:
            self.screen.note(f"worker {first.worker} was killed: {first.why}")
        if first.is_of_lost_peer:
            self._note_who_may_be_meant(first)
        unreached = {each.unreached_host: None for each in self.failures if each.code == _OF_SSH}
        for host in unreached:
            if host:
                self.screen.note(
                    f"{_OF_SSH} is also what ssh ends with where it cannot reach a host or log in "
                    f"there without a password; try `ssh -o BatchMode=yes {host} true`"
                )
        return exit_status(first.code)

    def _note_who_may_be_meant(self, failure: Failure) -> None:
        """Says which workers may be to blame where all that failed say that a peer is gone, and
        none has failed by itself."""
        failed = {each.worker for each in self.failures}
        innocent = [
            each for each in self.tracked_workers.values() if each.process.rank not in failed
        ]
        ended: list[int] = []
        stayed: list[int] = []
        for tracked in innocent:
            over_at = tracked.marked_at or tracked.ended_at or math.inf
            (ended if over_at <= failure.order else stayed).append(tracked.process.rank)
        if ended:
            self.screen.note(f"{_workers(ended)} had come to the end of the program before that")
        stopped = [rank for rank in stayed if rank in self._stopped]
        if stopped:
            self.screen.note(f"{_workers(stopped)} stood still, stopped by a signal or a debugger")
            stayed = [rank for rank in stayed if rank not in stopped]
        if stayed:
            self.screen.note(f"{_workers(stayed)} ran on until then, and ended with the job")


def _workers(ranks: list[int]) -> str:
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
