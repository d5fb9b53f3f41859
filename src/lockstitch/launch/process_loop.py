"""A loop that starts, follows and ends processes of this machine, from one thread, until the last
has ended.

It sleeps in a selector that knows every pipe of the workers and one socket on which Python
announces signals: SIGCHLD when a process ended, SIGINT, SIGTERM or SIGHUP when we are to stop,
SIGUSR1 when the workers shall say what they wait for. So nothing is polled, and whatever happens is
handled in order. What the selector knows has as data what is to be called.

The launcher is one (`job`), and so is its agent on another host (`agent.host_agent`).
"""

from __future__ import annotations

import array
import fcntl
import os
import selectors
import signal
import termios
from contextlib import ExitStack
from functools import partial
from typing import IO, TYPE_CHECKING, Literal

from lockstitch.clock import SYSTEM_CLOCK
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
        self.resources = ExitStack()
        self.escalation = SignalEscalation(grace_seconds, SYSTEM_CLOCK)
        self._processes: dict[int, WorkerProcess] = {}
        """The workers of this machine that run, by number."""
        self._children: dict[int, Callable[[int], None]] = {}
        """What is called when a child of this process has ended, by its number."""
        self._others: frozenset[int] = frozenset()
        """Children that are not ours to signal or to wait for: this process had them before, or
        they belong to another user."""
        self._pipes: dict[IO[bytes], Callable[[], object]] = {}
        """The open pipes of workers, and what is called when there is something to read."""
        self._is_held = False

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
        waits = (self.escalation.seconds_to_next(), self.seconds_to_next())
        return min((wait for wait in waits if wait is not None), default=None)

    def call_when_readable(self, source: IO[bytes], callback: Callable[[], object]) -> None:
        """Has the loop call `callback` whenever there is something to read."""
        self.selector.register(source, selectors.EVENT_READ, callback)

    def forget(self, source: IO[bytes]) -> None:
        """Ends `call_when_readable`."""
        self.selector.unregister(source)

    def call_at_end(self, pid: int, callback: Callable[[int], None]) -> None:
        """Has the loop call `callback` with the status that `os.waitpid` gives when this child has
        ended."""
        self._children[pid] = callback

    # ------------------------------------------------------------ workers of this machine

    def follow(self, process: WorkerProcess) -> None:
        """Follows the process of a worker from now on."""
        self._processes[process.rank] = process
        streams: tuple[tuple[StreamName, IO[bytes]], ...]
        streams = (("stdout", process.stdout), ("stderr", process.stderr))
        for name, pipe in streams:
            os.set_blocking(pipe.fileno(), False)
            self._pipes[pipe] = read = partial(self._read, process.rank, name, pipe)
            if not self._is_held:
                self.call_when_readable(pipe, read)
        self.call_at_end(process.pid, partial(self._note_end, process))

    def hold_output(self, is_held: bool) -> None:
        """Reads no more of what workers write, so that they will wait; or goes on with it."""
        if self._is_held != is_held:
            self._is_held = is_held
            for pipe, read in self._pipes.items():
                if is_held:
                    self.forget(pipe)
                else:
                    self.call_when_readable(pipe, read)

    def _read(self, worker: int, name: StreamName, pipe: IO[bytes]) -> int:
        """Takes what waits in a pipe; returns how many bytes, 0 also when nothing will come any
        more."""
        try:
            chunk = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return 0
        if chunk:
            self.take_output(worker, name, chunk)
        else:
            self._close(pipe)
        return len(chunk)

    def _close(self, pipe: IO[bytes]) -> None:
        if self._pipes.pop(pipe, None) is not None:
            if not self._is_held:
                self.forget(pipe)
            pipe.close()

    def _note_end(self, process: WorkerProcess, wait_status: int) -> None:
        process.note_end(wait_status)
        del self._processes[process.rank]
        streams: tuple[tuple[StreamName, IO[bytes]], ...]
        streams = (("stdout", process.stdout), ("stderr", process.stderr))
        for name, pipe in streams:
            read_rest(pipe, partial(self._read, process.rank, name, pipe))
            self._close(pipe)
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


def read_rest(pipe: IO[bytes], read: Callable[[], int]) -> None:
    """Has `read` take what waits in the pipe of a process that has ended, unless it is closed. An
    orphan may hold it open, or even write to it, for ever: what comes from now on is nobody's."""
    if not pipe.closed:
        waiting = array.array("i", [0])
        fcntl.ioctl(pipe.fileno(), termios.FIONREAD, waiting)
        left = waiting[0]
        while left > 0 and (count := read()):
            left -= count


def _wait_status(pid: int) -> tuple[int, int] | None:
    """What `os.waitpid` says of a child without waiting; None where there is none, or somebody else
    has taken note of its end."""
    try:
        return os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
