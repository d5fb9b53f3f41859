"""A job: processes of this machine, followed from one thread until the last has ended.

The loop sleeps in a selector that knows every pipe of the workers and one socket on which Python
announces signals: SIGCHLD when a process ended, SIGINT, SIGTERM or SIGHUP when we are to stop,
SIGUSR1 when the workers shall say what they wait for. So nothing is polled, no thread is needed,
and whatever happens is handled in order. What the selector knows has as data what is to be called.

Which workers there are, and what follows from the end of one, say the kinds of jobs: `local`, whose
workers stand and fall together, and `elastic`, whose workers come and go.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING

from lockstitch.attach.presence import PRESENCE
from lockstitch.attach.sources import SOURCES
from lockstitch.attach.values import LaunchedWorker
from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.endings import Mark, take_mark, take_step
from lockstitch.launch.memory_kills import MemoryKills
from lockstitch.launch.process import (
    WorkerProcess,
    adopt_orphans,
    child_pids,
    exit_status,
)
from lockstitch.launch.progress import Progress
from lockstitch.launch.screen import LineBuffer
from lockstitch.launch.stderr_tail import StderrTail
from lockstitch.launch.stopping import STOP_SIGNALS, SignalEscalation, announced_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.launch.outputs import Outputs
    from lockstitch.launch.screen import Screen

_OF_SSH = 255
# How long a worker whose program fails without a mark may take to end after its last word.
_LAST_WORD_SECONDS = 2.0
# How long it may take those who are to blame to end, where others have failed because of them.
_CULPRIT_SECONDS = 5.0
# What Python ends with where an exception ends a program.
_OF_EXCEPTIONS = 1


@dataclass
class OutputPipe:
    """The pipe of one of a worker's two streams, and what is not yet a whole line of it."""

    pipe: IO[bytes]
    name: str
    lines: LineBuffer = field(default_factory=LineBuffer)


@dataclass
class TrackedWorker:
    """A worker that the job follows: its process, what it has said, and how it has ended."""

    process: WorkerProcess
    output_pipes: list[OutputPipe]
    stderr_tail: StderrTail = field(default_factory=StderrTail)
    spoke_last_at: float | None = None
    mark: Mark | None = None
    """How its program ended, as it has said itself, and when that was."""
    marked_at: float = 0.0
    started_at: float = field(default_factory=time.time)
    """In seconds since the epoch."""
    ended_at: float | None = None


@dataclass(frozen=True)
class Failure:
    """How a worker has failed, and what says who is to blame.

    A worker that failed because a peer was gone (`is_of_lost_peer`) is not to blame where another
    has failed by itself. Of those alike the first is, by `order`: when its program was over, as it
    has marked, since its process may take a while to end, and a peer that fails because of it may
    be gone sooner. Without a mark its last word counts, if that was shortly before its end.
    """

    worker: int
    host: str
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


class Job:
    """A job that is run from one thread. A kind of job defines `begin` and `note_end`, and what
    else differs.

    `outputs`: files to which what workers say is written too.
    """

    def __init__(
        self, screen: Screen, grace_seconds: float, outputs: Outputs | None = None
    ) -> None:
        self.screen = screen
        self.selector = selectors.DefaultSelector()
        self.resources = ExitStack()
        self.escalation = SignalEscalation(grace_seconds, SYSTEM_CLOCK)
        self.tracked_workers: dict[int, TrackedWorker] = {}
        self.failures: list[Failure] = []
        self.stopped_by: signal.Signals | None = None
        self._outputs = outputs
        self._memory_kills = MemoryKills()
        self._progress = Progress(SYSTEM_CLOCK)
        self._signalled_since: float | None = None
        self._stopped: list[int] = []
        """The ranks of workers that stood still when all were told to end."""

    # ------------------------------------------------------------ what kinds of jobs define

    def begin(self) -> None:
        """Starts the workers. What is to be closed in the end goes to `resources`."""
        raise NotImplementedError

    def note_end(self, tracked: TrackedWorker, code: int) -> None:
        """Called when a worker has ended by itself, not because it was told to stop."""
        raise NotImplementedError

    def note_other_end(self, pid: int, code: int) -> None:
        """Called when a child that is no worker has ended."""

    def goes_on(self) -> bool:
        """Whether workers may still be started when none is left."""
        return False

    def seconds_to_next(self) -> float | None:
        """How long until `pass_time` wants to be called; None for never."""
        return None

    def pass_time(self) -> None:
        """Does what is due; called after each turn of the loop."""

    # ------------------------------------------------------------ the loop

    def run(self) -> int:
        """Runs the job; returns its exit status (see `run_local`)."""
        adopt_orphans()
        with self.resources as resources:
            resources.enter_context(self.selector)
            signals = resources.enter_context(announced_signals())
            resources.callback(self._kill_all)  # whatever goes wrong in here
            self.selector.register(
                signals, selectors.EVENT_READ, lambda: self._obey(signals.recv(64))
            )
            self._let_others_look(resources)
            self.begin()
            while self._reap() or (self.goes_on() and not self.escalation.is_begun):
                for key, _ in self.selector.select(self._timeout()):
                    key.data()
                self._send_due_signal()
                if not self.escalation.is_begun:
                    self.pass_time()
        return self.conclude()

    def _let_others_look(self, resources: ExitStack) -> None:
        """Has commands such as `lockstitch status` find this job, and answers them in the loop."""
        SOURCES.launched = self._launched
        endpoint = PRESENCE.show_launcher()
        if endpoint is not None:
            resources.callback(PRESENCE.close)
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
                "" if each.ended_at is None else each.process.describe_end(),
            )
            for each in list(self.tracked_workers.values())
        ]

    def _timeout(self) -> float | None:
        waits = [self.escalation.seconds_to_next()]
        if not self.escalation.is_begun:
            waits.append(self.seconds_to_next())
        return min((wait for wait in waits if wait is not None), default=None)

    def start(self, process: WorkerProcess) -> None:
        """Follows a process from now on."""
        output_pipes = [OutputPipe(process.stdout, "stdout"), OutputPipe(process.stderr, "stderr")]
        tracked = self.tracked_workers[process.pid] = TrackedWorker(process, output_pipes)
        for output in output_pipes:
            os.set_blocking(output.pipe.fileno(), False)
            self.selector.register(
                output.pipe, selectors.EVENT_READ, partial(self._read, tracked, output)
            )

    def call_when_readable(self, source: IO[bytes], callback: Callable[[], None]) -> None:
        """Has the loop call `callback` whenever there is something to read."""
        self.selector.register(source, selectors.EVENT_READ, callback)

    def forget(self, source: IO[bytes]) -> None:
        """Ends `call_when_readable`."""
        self.selector.unregister(source)

    # ------------------------------------------------------------ what workers say

    def _read(self, tracked: TrackedWorker, output: OutputPipe) -> bool:
        """Shows what waits in a pipe; False when nothing does, or nothing will any more."""
        try:
            chunk = os.read(output.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        for line in output.lines.feed(chunk):
            self._take(tracked, output, line)
        self.screen.passing(tracked.process.rank, output.name, output.lines.passing)
        if not chunk:
            self._close(output)
        return bool(chunk)

    def _take(self, tracked: TrackedWorker, output: OutputPipe, line: bytes) -> None:
        if output.name == "stderr":
            line, step = take_step(line)
            if step is not None:
                self.screen.progress(self._progress.note(tracked.process.rank, step))
            line, mark = take_mark(line)
            if mark is not None:
                self._note_mark(tracked, mark)
            if (mark or step) and not line:
                return
        self._show(tracked, output, line)

    def _note_mark(self, tracked: TrackedWorker, mark: Mark) -> None:
        """Keeps how a program has ended: a worker's own mark says more than that of a process that
        it has started."""
        if tracked.mark is None or mark.is_of_worker or not tracked.mark.is_of_worker:
            tracked.mark, tracked.marked_at = mark, SYSTEM_CLOCK.now()

    def _show(self, tracked: TrackedWorker, output: OutputPipe, line: bytes) -> None:
        self.screen.line(tracked.process.rank, output.name, line)
        if self._outputs is not None:
            self._outputs.line(tracked.process.rank, output.name, line)
        if output.name == "stderr":
            tracked.stderr_tail.add(line)
            tracked.spoke_last_at = SYSTEM_CLOCK.now()

    def _close(self, output: OutputPipe) -> None:
        if not output.pipe.closed:
            self.selector.unregister(output.pipe)
            output.pipe.close()

    # ------------------------------------------------------------ who ended

    def _reap(self) -> bool:
        """Takes note of all that ended; False when no process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            if pid in self.tracked_workers:
                self._note_end(self.tracked_workers[pid], status)
            else:
                self.note_other_end(pid, os.waitstatus_to_exitcode(status))
        if not self.goes_on() and not self.running():
            # What is left are orphans, perhaps just tidying up.
            self.escalation.begin(signal.SIGTERM, self.escalation.grace_seconds)
        return True

    def _note_end(self, tracked: TrackedWorker, wait_status: int) -> None:
        code = tracked.process.note_end(wait_status)
        for output in tracked.output_pipes:
            # An orphan may hold the pipe open for ever: take what is there, await no end.
            while not output.pipe.closed and self._read(tracked, output):
                pass
            if rest := output.lines.flush():
                self._take(tracked, output, rest)
            self._close(output)
        tracked.ended_at = SYSTEM_CLOCK.now()
        PRESENCE.forget_child(tracked.process.pid)
        if not self._signalled_since:
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
                process.host,
                code,
                how or process.describe_end(),
                tracked.marked_at if mark else order,
                mark is not None and mark.is_of_lost_peer,
                tracked.stderr_tail,
                self._why_killed(process, code),
            )
        )

    def _why_killed(self, process: WorkerProcess, code: int) -> str:
        if code != -signal.SIGKILL or process.host:
            return ""
        return self._memory_kills.describe(process.pid)

    def plan_end(self, after_seconds: float) -> None:
        """Has all workers that are left told to stop; later where nobody has failed yet but because
        a peer was gone. May be said again when somebody else has failed."""
        self.escalation.begin(signal.SIGTERM, _CULPRIT_SECONDS)
        if not self.failures or not all(each.is_of_lost_peer for each in self.failures):
            self.escalation.within(after_seconds)

    def running(self) -> list[WorkerProcess]:
        """Returns the processes of the workers that have not ended."""
        processes = (tracked.process for tracked in self.tracked_workers.values())
        return [process for process in processes if process.exit_code is None]

    # ------------------------------------------------------------ how it is ended

    def _obey(self, announced: bytes) -> None:
        for number in announced:
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

    def _send_due_signal(self) -> None:
        number = self.escalation.due()
        if number is None:
            return
        if self._signalled_since is None:
            self._signalled_since = SYSTEM_CLOCK.now()
            self._stopped = [each.rank for each in self.running() if each.is_stopped]
        for process in self.running():
            process.signal(number)
        if number != signal.SIGINT:
            for orphan in set(child_pids()) - set(self.tracked_workers):
                os.kill(orphan, number)

    def _kill_all(self) -> None:
        for process in self.running():
            process.signal(signal.SIGKILL)

    # ------------------------------------------------------------ how it ended

    def conclude(self) -> int:
        """Shows what went wrong; returns the exit status."""
        if not self.failures:
            return 0 if self.stopped_by is None else 128 + self.stopped_by
        first, *others = sorted(self.failures, key=lambda failure: failure.blame)
        self.screen.failure(first.worker, first.how, first.stderr_tail.telling())
        for failure in others:
            self.screen.note(f"worker {failure.worker} failed too: {failure.how}")
        if first.why:
            self.screen.note(f"worker {first.worker} was killed: {first.why}")
        if first.is_of_lost_peer:
            self._note_who_may_be_meant(first)
        for host in {each.host: None for each in self.failures if each.code == _OF_SSH}:
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
