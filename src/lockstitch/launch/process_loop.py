"""A loop that starts, follows and ends processes of this machine, from one thread, until the last
has ended.

It sleeps in a selector that knows every pipe of the workers and one socket on which Python
announces signals: SIGCHLD when a process ended, SIGINT, SIGTERM or SIGHUP when we are to stop,
SIGUSR1 when the workers shall say what they wait for. So nothing is polled, and whatever happens is
handled in order. What the selector knows has as data what is to be called.

The launcher is one (`job`), and so is its agent on another host (`agent.host_agent`).
"""

from __future__ import annotations

import os
import selectors
import signal
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Literal

from lockstitch.clock import SYSTEM_CLOCK, earliest
from lockstitch.launch.pipes import Pipes
from lockstitch.launch.process import child_pids, orphans_adopted
from lockstitch.launch.stopping import SignalEscalation, announced_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.launch.process import WorkerProcess

StreamName = Literal["stdout", "stderr"]


class ProcessLoop:
    """See the module. Who derives from it says what is done (`begin`), and what follows."""

    def __init__(self, grace_seconds: float) -> None:
        self.selector = selectors.DefaultSelector()
        self.pipes = Pipes(self.selector)
        """Those of workers, and whatever else it is to read."""
        self.resources = ExitStack()
        self.escalation = SignalEscalation(grace_seconds, SYSTEM_CLOCK)
        self._processes: dict[int, WorkerProcess] = {}
        """The workers of this machine that run, by number."""
        self._children: dict[int, Callable[[int], None]] = {}
        """What is called when a child of this process has ended, by its number."""
        self._others: frozenset[int] = frozenset()
        """Children that are not ours to signal or to wait for: this process had them before, or
        they belong to another user."""

    # ------------------------------------------------------------ what is different

    def begin(self) -> None:
        """Called when the loop begins. What is to be closed in the end goes to `resources`."""
        raise NotImplementedError

    def take_output(self, worker: int, stream: StreamName, chunk: bytes) -> None:
        """Called with what a worker of this machine has written."""
        raise NotImplementedError

    def take_end(self, process: WorkerProcess) -> None:
        """Called when a worker of this machine has ended, after the last of its output."""
        raise NotImplementedError

    def obey(self, number: int) -> None:
        """Called with a signal that this process has got."""
        raise NotImplementedError

    def is_busy(self) -> bool:
        """Whether any worker runs."""
        return bool(self._processes)

    def goes_on(self) -> bool:
        """Whether workers may still be started when none is left."""
        return False

    def seconds_to_next(self) -> float | None:
        """How long until `pass_time` wants to be called; None for never."""
        return None

    def pass_time(self) -> None:
        """Does what is due; called after each turn of the loop."""

    def signal_all(self, number: signal.Signals) -> None:
        """Sends a signal to all workers, and to what they have left behind, unless it is SIGINT."""
        for process in list(self._processes.values()):
            process.signal(number)
        if number != signal.SIGINT:
            for orphan in set(child_pids()) - self._others - set(self._children):
                try:
                    os.kill(orphan, number)
                except ProcessLookupError:
                    continue
                except PermissionError:  # what `sudo` has started, say: it may stay
                    self._others |= {orphan}

    def wind_up(self) -> None:
        """Called when no worker runs and none will be started: has ended what is left, orphans that
        are perhaps just tidying up."""
        self.escalation.begin(signal.SIGTERM, self.escalation.grace_seconds)

    # ------------------------------------------------------------ the loop

    def run_loop(self) -> None:
        """Runs until no process is left."""
        self._others = frozenset(child_pids())
        with orphans_adopted(), self.resources as resources:
            resources.enter_context(self.selector)
            signals = resources.enter_context(announced_signals())
            resources.callback(self._kill_all)  # whatever goes wrong in here
            self.selector.register(
                signals, selectors.EVENT_READ, lambda: [*map(self.obey, signals.recv(64))]
            )
            self.begin()
            while self._reap() or (self.goes_on() and not self.escalation.is_begun):
                for key, _ in self.selector.select(self._timeout()):
                    key.data()
                number = self.escalation.due()
                if number is not None:
                    self.signal_all(number)
                self.pass_time()

    def _timeout(self) -> float | None:
        return earliest(self.escalation.seconds_to_next(), self.seconds_to_next())

    def call_at_end(self, pid: int, callback: Callable[[int], None]) -> None:
        """Has the loop call `callback` with the status that `os.waitpid` gives when this child has
        ended."""
        self._children[pid] = callback

    # ------------------------------------------------------------ workers of this machine

    def follow(self, process: WorkerProcess) -> None:
        """Follows the process of a worker from now on."""
        self._processes[process.rank] = process
        self.pipes.follow(process.stdout, partial(self.take_output, process.rank, "stdout"))
        self.pipes.follow(process.stderr, partial(self.take_output, process.rank, "stderr"))
        self.call_at_end(process.pid, partial(self._note_end, process))

    def _note_end(self, process: WorkerProcess, wait_status: int) -> None:
        process.note_end(wait_status)
        del self._processes[process.rank]
        self.pipes.finish(process.stdout)
        self.pipes.finish(process.stderr)
        self.take_end(process)

    # ------------------------------------------------------------ who ended

    def _reap(self) -> bool:
        """Takes note of all that ended; False when no process is left."""
        is_any_left, ended = self._ended()
        for pid, status in ended:
            callback = self._children.pop(pid, None)
            if callback is not None:
                callback(status)
        if not is_any_left:
            return False
        if not self.goes_on() and not self.is_busy():
            self.wind_up()
        return True

    def _ended(self) -> tuple[bool, list[tuple[int, int]]]:
        """Returns whether any process is left, and who has ended, with what `os.waitpid` says."""
        ended: list[tuple[int, int]] = []
        while True:
            # Where this process has other children, whoever has made those asks for their ends.
            asked = set(child_pids()) - self._others if self._others else {-1}
            found = [each for each in map(_wait_status, asked) if each is not None]
            new = [each for each in found if each[0]]
            ended += new
            if not new:
                return bool(found), ended

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGKILL)


def _wait_status(pid: int) -> tuple[int, int] | None:
    """What `os.waitpid` says of a child without waiting; None where there is none, or somebody else
    has taken note of its end."""
    try:
        return os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
