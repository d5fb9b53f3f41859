"""A job: processes of this machine, followed from one thread until the last has ended.

The loop sleeps in a selector that knows every pipe of the workers and one socket on which Python
announces signals: SIGCHLD when a process ended, SIGINT, SIGTERM or SIGHUP when we are to stop,
SIGUSR1 when the workers shall say what they wait for. So nothing is polled, no thread is needed,
and whatever happens is handled in order. What the selector knows has as data what is to be called.

Which workers there are, and what follows from the end of one, say the kinds of jobs: `local`, whose
workers stand and fall together, and `elastic`, whose workers come and go.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.launch.process import (
    WorkerProcess,
    adopt_orphans,
    child_pids,
    exit_status,
)
from lockstitch.launch.screen import LineBuffer
from lockstitch.launch.stopping import STOP_SIGNALS, Ladder, announced_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.launch.outputs import Outputs
    from lockstitch.launch.screen import Screen

_REMEMBERED_LINES = 60
_OF_SSH = 255
_TRACEBACK = b"Traceback (most recent call last):"
_LINES_WITHOUT_TRACEBACK = 15


@dataclass
class Outlet:
    """One of a worker's two streams."""

    pipe: IO[bytes]
    name: str
    lines: LineBuffer = field(default_factory=LineBuffer)


@dataclass
class Member:
    """A worker as the job follows it."""

    process: WorkerProcess
    outlets: list[Outlet]
    last_words: deque[bytes] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_LINES))
    spoke_last_at: float | None = None


@dataclass(frozen=True)
class Failure:
    """`order` is when the worker said its last word: a process takes a while to end after that, so
    a peer that fails because of it may be gone sooner. Silent failures count from their end."""

    worker: int
    host: str
    code: int
    how: str
    order: float
    last_words: Sequence[bytes]


class Job:
    """See the module. A kind of job defines `begin` and `note_end`, and what else differs.

    `outputs`: files to which what workers say is written too.
    """

    def __init__(
        self, screen: Screen, grace_seconds: float, outputs: Outputs | None = None
    ) -> None:
        self.screen = screen
        self.selector = selectors.DefaultSelector()
        self.resources = ExitStack()
        self.ladder = Ladder(grace_seconds, SYSTEM_CLOCK)
        self.members: dict[int, Member] = {}
        self.failures: list[Failure] = []
        self.stopped_by: signal.Signals | None = None
        self._outputs = outputs

    # ------------------------------------------------------------ what kinds of jobs define

    def begin(self) -> None:
        """Starts the workers. What is to be closed in the end goes to `resources`."""
        raise NotImplementedError

    def note_end(self, member: Member, code: int) -> None:
        """A worker has ended by itself, not because it was told to stop."""
        raise NotImplementedError

    def note_other_end(self, pid: int, code: int) -> None:
        """A child that is no worker has ended."""

    def goes_on(self) -> bool:
        """Whether workers may still be started when none is left."""
        return False

    def seconds_to_next(self) -> float | None:
        """How long until `pass_time` wants to be called; None for never."""
        return None

    def pass_time(self) -> None:
        """Called after each turn of the loop."""

    # ------------------------------------------------------------ the loop

    def run(self) -> int:
        """Returns the job's exit status; see `run_local`."""
        adopt_orphans()
        with self.resources as resources:
            resources.enter_context(self.selector)
            signals = resources.enter_context(announced_signals())
            resources.callback(self._kill_all)  # whatever goes wrong in here
            self.selector.register(
                signals, selectors.EVENT_READ, lambda: self._obey(signals.recv(64))
            )
            self.begin()
            while self._reap() or (self.goes_on() and not self.ladder.is_begun):
                for key, _ in self.selector.select(self._timeout()):
                    key.data()
                self._climb()
                if not self.ladder.is_begun:
                    self.pass_time()
        return self.conclude()

    def _timeout(self) -> float | None:
        waits = [self.ladder.seconds_to_next(), self.seconds_to_next()]
        return min((wait for wait in waits if wait is not None), default=None)

    def start(self, process: WorkerProcess) -> None:
        """Follows a process from now on."""
        outlets = [Outlet(process.stdout, "stdout"), Outlet(process.stderr, "stderr")]
        member = self.members[process.pid] = Member(process, outlets)
        for outlet in outlets:
            os.set_blocking(outlet.pipe.fileno(), False)
            self.selector.register(
                outlet.pipe, selectors.EVENT_READ, partial(self._read, member, outlet)
            )

    def call_when_readable(self, source: IO[bytes], callback: Callable[[], None]) -> None:
        """Calls back, from the loop, as often as there is something to read."""
        self.selector.register(source, selectors.EVENT_READ, callback)

    def forget(self, source: IO[bytes]) -> None:
        """Ends that."""
        self.selector.unregister(source)

    # ------------------------------------------------------------ what workers say

    def _read(self, member: Member, outlet: Outlet) -> bool:
        """Shows what waits in a pipe; False when nothing does, or nothing will any more."""
        try:
            chunk = os.read(outlet.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        for line in outlet.lines.feed(chunk):
            self._show(member, outlet, line)
        self.screen.passing(member.process.rank, outlet.name, outlet.lines.passing)
        if not chunk:
            self._close(outlet)
        return bool(chunk)

    def _show(self, member: Member, outlet: Outlet, line: bytes) -> None:
        self.screen.line(member.process.rank, outlet.name, line)
        if self._outputs is not None:
            self._outputs.line(member.process.rank, outlet.name, line)
        if outlet.name == "stderr":
            member.last_words.append(line)
            member.spoke_last_at = SYSTEM_CLOCK.now()

    def _close(self, outlet: Outlet) -> None:
        if not outlet.pipe.closed:
            self.selector.unregister(outlet.pipe)
            outlet.pipe.close()

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
            if pid in self.members:
                self._note_end(self.members[pid], status)
            else:
                self.note_other_end(pid, os.waitstatus_to_exitcode(status))
        if not self.goes_on() and not self.running():
            # What is left are orphans, perhaps just tidying up.
            self.ladder.begin(signal.SIGTERM, self.ladder.grace_seconds)
        return True

    def _note_end(self, member: Member, wait_status: int) -> None:
        code = member.process.note_end(wait_status)
        for outlet in member.outlets:
            # An orphan may hold the pipe open for ever: take what is there, await no end.
            while not outlet.pipe.closed and self._read(member, outlet):
                pass
            if rest := outlet.lines.flush():
                self._show(member, outlet, rest)
            self._close(outlet)
        if not self.ladder.is_climbing:
            self.note_end(member, code)

    def note_failure(self, member: Member, code: int) -> None:
        """Keeps what is told in the end."""
        order = member.spoke_last_at or SYSTEM_CLOCK.now()
        process = member.process
        how = process.describe_end()
        self.failures.append(
            Failure(process.rank, process.host, code, how, order, member.last_words)
        )

    def running(self) -> list[WorkerProcess]:
        """The workers that have not ended."""
        processes = (member.process for member in self.members.values())
        return [process for process in processes if process.exit_code is None]

    # ------------------------------------------------------------ how it is ended

    def _obey(self, announced: bytes) -> None:
        for number in announced:
            if number in STOP_SIGNALS:
                self.stopped_by = self.stopped_by or signal.Signals(number)
                first = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
                self.screen.note(f"{signal.Signals(number).name}: ending all workers")
                self.ladder.begin(first, after_seconds=0)
                self.ladder.hurry()
            elif number == signal.SIGUSR1:
                for process in self.running():
                    if not process.ask_what_it_waits_for():
                        self.screen.note(f"worker {process.rank} has not called init_rpc yet")

    def _climb(self) -> None:
        number = self.ladder.due()
        if number is None:
            return
        for process in self.running():
            process.signal(number)
        if number != signal.SIGINT:
            for orphan in set(child_pids()) - set(self.members):
                os.kill(orphan, number)

    def _kill_all(self) -> None:
        for process in self.running():
            process.signal(signal.SIGKILL)

    # ------------------------------------------------------------ how it ended

    def conclude(self) -> int:
        """Shows what went wrong; returns the exit status."""
        if not self.failures:
            return 0 if self.stopped_by is None else 128 + self.stopped_by
        first, *others = sorted(self.failures, key=lambda failure: failure.order)
        self.screen.failure(first.worker, first.how, _telling(first.last_words))
        for failure in others:
            self.screen.note(f"worker {failure.worker} failed too: {failure.how}")
        for host in {each.host: None for each in self.failures if each.code == _OF_SSH}:
            if host:
                self.screen.note(
                    f"{_OF_SSH} is also what ssh ends with where it cannot reach a host or log in "
                    f"there without a password; try `ssh -o BatchMode=yes {host} true`"
                )
        return exit_status(first.code)


def _telling(last_words: Sequence[bytes]) -> list[bytes]:
    """The traceback among the lines, with all that follows; the last few where there is none."""
    lines = list(last_words)
    if _TRACEBACK in lines:
        return lines[lines.index(_TRACEBACK) :]
    return lines[-_LINES_WITHOUT_TRACEBACK:]
