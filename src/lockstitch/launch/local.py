"""One job on this machine: N processes, followed from one thread until the last has ended.

The loop sleeps in a selector that knows every pipe of the workers and one socket on which Python
announces signals: SIGCHLD when a process ended, SIGINT, SIGTERM or SIGHUP when we are to stop,
SIGUSR1 when the workers shall say what they wait for. So nothing is polled, no thread is needed,
and whatever happens is handled in order.

When a worker fails, the others get a moment to fail by themselves (often they are about to, and
what they say helps) before they are told to stop.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.launch.handover import secret_for
from lockstitch.launch.meeting import MeetingPlace
from lockstitch.launch.process import (
    WorkerProcess,
    adopt_orphans,
    child_pids,
    describe_exit,
    exit_status,
    worker_environment,
)
from lockstitch.launch.screen import LineBuffer
from lockstitch.launch.stopping import STOP_SIGNALS, Ladder, announced_signals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockstitch.launch.screen import Screen

GRACE_SECONDS = 5.0
"""How long a worker may take to obey a signal before it gets a stronger one."""

_SETTLING_SECONDS = 0.5
_REMEMBERED_LINES = 60
_TRACEBACK = b"Traceback (most recent call last):"
_LINES_WITHOUT_TRACEBACK = 15


def run_local(
    command: Sequence[str], workers: int, screen: Screen, grace_seconds: float = GRACE_SECONDS
) -> int:
    """Runs `command` as `workers` processes and returns the job's exit status.

    0 if all ended well; that of the worker that failed first; 128 + n if signal n stopped the job
    (130 after Ctrl-C). Meanwhile this process's children and its signals are the job's: call it
    from the main thread of a process that does nothing else.
    """
    return _LocalJob(command, workers, screen, grace_seconds).run()


@dataclass
class _Outlet:
    """One of a worker's two streams."""

    pipe: IO[bytes]
    name: str
    lines: LineBuffer = field(default_factory=LineBuffer)


@dataclass
class _Member:
    """A worker as the job follows it."""

    process: WorkerProcess
    outlets: list[_Outlet]
    last_words: deque[bytes] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_LINES))
    spoke_last_at: float | None = None


@dataclass(frozen=True)
class _Failure:
    """`order` is when the worker said its last word: a process takes a while to end after that, so
    a peer that fails because of it may be gone sooner. Silent failures count from their end."""

    rank: int
    code: int
    order: float
    last_words: Sequence[bytes]


class _LocalJob:
    def __init__(
        self, command: Sequence[str], workers: int, screen: Screen, grace_seconds: float
    ) -> None:
        self._command = command
        self._workers = workers
        self._screen = screen
        self._ladder = Ladder(grace_seconds, SYSTEM_CLOCK)
        self._selector = selectors.DefaultSelector()
        self._members: dict[int, _Member] = {}
        self._failures: list[_Failure] = []
        self._stopped_by: signal.Signals | None = None

    def run(self) -> int:
        adopt_orphans()
        with ExitStack() as resources:
            meeting = resources.enter_context(MeetingPlace())
            resources.enter_context(self._selector)
            signals = resources.enter_context(announced_signals())
            resources.callback(self._kill_all)  # whatever goes wrong in here
            self._selector.register(signals, selectors.EVENT_READ)
            secret = resources.enter_context(secret_for(os.environ))
            self._start(meeting, {**os.environ, **secret})
            while self._reap():
                for key, _ in self._selector.select(self._ladder.seconds_to_next()):
                    if key.fileobj is signals:
                        self._obey(signals.recv(64))
                    else:
                        self._read(*key.data)
                self._climb()
        return self._conclude()

    def _start(self, meeting: MeetingPlace, inherited: Mapping[str, str]) -> None:
        for rank in range(self._workers):
            environment = worker_environment(rank, self._workers, meeting, inherited)
            process = WorkerProcess(rank, self._command, environment)
            outlets = [_Outlet(process.stdout, "stdout"), _Outlet(process.stderr, "stderr")]
            member = self._members[process.pid] = _Member(process, outlets)
            for outlet in outlets:
                os.set_blocking(outlet.pipe.fileno(), False)
                self._selector.register(outlet.pipe, selectors.EVENT_READ, (member, outlet))

    # ------------------------------------------------------------------ what workers say

    def _read(self, member: _Member, outlet: _Outlet) -> bool:
        """Shows what waits in a pipe; False when nothing does, or nothing will any more."""
        try:
            chunk = os.read(outlet.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        for line in outlet.lines.feed(chunk):
            self._show(member, outlet, line)
        self._screen.passing(member.process.rank, outlet.name, outlet.lines.passing)
        if not chunk:
            self._close(outlet)
        return bool(chunk)

    def _show(self, member: _Member, outlet: _Outlet, line: bytes) -> None:
        self._screen.line(member.process.rank, outlet.name, line)
        if outlet.name == "stderr":
            member.last_words.append(line)
            member.spoke_last_at = SYSTEM_CLOCK.now()

    def _close(self, outlet: _Outlet) -> None:
        if not outlet.pipe.closed:
            self._selector.unregister(outlet.pipe)
            outlet.pipe.close()

    # ------------------------------------------------------------------ who ended

    def _reap(self) -> bool:
        """Takes note of all that ended; False when no process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            if pid in self._members:
                self._note_end(self._members[pid], status)
        if all(member.process.exit_code is not None for member in self._members.values()):
            # What is left are orphans, perhaps just tidying up.
            self._ladder.begin(signal.SIGTERM, self._ladder.grace_seconds)
        return True

    def _note_end(self, member: _Member, wait_status: int) -> None:
        code = member.process.note_end(wait_status)
        for outlet in member.outlets:
            # An orphan may hold the pipe open for ever: take what is there, await no end.
            while not outlet.pipe.closed and self._read(member, outlet):
                pass
            if rest := outlet.lines.flush():
                self._show(member, outlet, rest)
            self._close(outlet)
        if code != 0 and not self._ladder.is_climbing:
            order = member.spoke_last_at or SYSTEM_CLOCK.now()
            self._failures.append(_Failure(member.process.rank, code, order, member.last_words))
            self._ladder.begin(signal.SIGTERM, _SETTLING_SECONDS)

    # ------------------------------------------------------------------ how it is ended

    def _obey(self, announced: bytes) -> None:
        for number in announced:
            if number in STOP_SIGNALS:
                self._stopped_by = self._stopped_by or signal.Signals(number)
                first = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
                self._screen.note(f"{signal.Signals(number).name}: ending all workers")
                self._ladder.begin(first, after_seconds=0)
                self._ladder.hurry()
            elif number == signal.SIGUSR1:
                for process in self._running():
                    if not process.ask_what_it_waits_for():
                        self._screen.note(f"worker {process.rank} has not called init_rpc yet")

    def _climb(self) -> None:
        number = self._ladder.due()
        if number is None:
            return
        for process in self._running():
            process.signal(number)
        if number != signal.SIGINT:
            for orphan in set(child_pids()) - set(self._members):
                os.kill(orphan, number)

    def _kill_all(self) -> None:
        for process in self._running():
            process.signal(signal.SIGKILL)

    def _running(self) -> list[WorkerProcess]:
        processes = (member.process for member in self._members.values())
        return [process for process in processes if process.exit_code is None]

    # ------------------------------------------------------------------ how it ended

    def _conclude(self) -> int:
        if not self._failures:
            return 0 if self._stopped_by is None else 128 + self._stopped_by
        first, *others = sorted(self._failures, key=lambda failure: failure.order)
        self._screen.failure(first.rank, describe_exit(first.code), _telling(first.last_words))
        for failure in others:
            self._screen.note(f"worker {failure.rank} failed too: {describe_exit(failure.code)}")
        return exit_status(first.code)


def _telling(last_words: Sequence[bytes]) -> list[bytes]:
    """The traceback among the lines, with all that follows; the last few where there is none."""
    lines = list(last_words)
    if _TRACEBACK in lines:
        return lines[lines.index(_TRACEBACK) :]
    return lines[-_LINES_WITHOUT_TRACEBACK:]
