"""The agent on a host: what the launcher starts there to start, follow and end its workers.

It is told what to do by its stdin and tells what becomes of it by its stdout (`messages`). The
workers end with the line to the launcher: when stdin ends, or says nothing for too long, they get
SIGTERM, and SIGKILL a grace period later. The signals by which a program is told to stop are not
for the agent: who ends a whole step of Slurm sends them to the workers as well, and the agent stays
to tell how these have ended, but starts no more.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lockstitch
from lockstitch import __version__
from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import RemoteProtocolError
from lockstitch.folders import Folder
from lockstitch.launch.agent.lines import Lines
from lockstitch.launch.agent.messages import (
    FROM_AGENT,
    HELLO,
    HELLO_CODEC,
    TO_AGENT,
    Begin,
    Closing,
    Ended,
    FromAgent,
    Hello,
    NotStarted,
    Output,
    Remark,
    Start,
    Started,
)
from lockstitch.launch.memory_kills import MemoryKills
from lockstitch.launch.process import GRACE_SECONDS, WorkerProcess, with_defaults
from lockstitch.launch.process_loop import ProcessLoop, StreamName
from lockstitch.launch.stopping import STOP_SIGNALS
from lockstitch.trust import Secret
from lockstitch.trust.secret import FILE_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from lockstitch.launch.agent.messages import Signal

_MOST_KEPT_BYTES: Final = 1 << 20
"""How much the launcher may leave unread before workers have to wait."""


def main() -> None:
    """Runs the agent of this host, on its stdin and stdout."""
    HostAgent(*_private_ends()).run_loop()


class HostAgent(ProcessLoop):
    """The agent; `run_loop()` returns when all workers have ended and none will be started. It
    closes both descriptors."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        super().__init__(GRACE_SECONDS)
        self._lines = Lines(self.selector, incoming, outgoing, self._take, self._lose_launcher)
        self._lines.on_empty = lambda: self._lines.send(b"")
        self._lines.on_written = lambda: self.pipes.hold(False)
        self._setup = Begin((), "", GRACE_SECONDS, 0)
        self._inherited: dict[str, str] = {}
        self._memory_kills = MemoryKills()
        self._is_closing = False
        self._heard = 0
        self._heard_at = SYSTEM_CLOCK.now()

    def begin(self) -> None:
        self.resources.callback(self._lines.finish)
        place = str(Path(lockstitch.__file__).parent)
        self._lines.send(HELLO + HELLO_CODEC.encode(Hello(__version__, place)))

    # ------------------------------------------------------------ what the launcher says

    def _take(self, line: bytes) -> None:
        try:
            message = TO_AGENT.decode(line)
        except RemoteProtocolError:  # whose text would repeat what may be the secret
            self._tell(Remark("the launcher has said what its agent does not understand"))
            return
        if isinstance(message, Begin):
            self._set_up(message)
        elif isinstance(message, Start):
            self._start(message)
        else:
            self._signal(message)

    def _set_up(self, setup: Begin) -> None:
        self._setup = setup
        self.escalation.grace_seconds = setup.grace_seconds
        path = self.resources.enter_context(Folder()) / "secret"
        Secret.from_text(setup.secret).write(path)
        self._inherited = {**os.environ, FILE_VARIABLE: str(path)}
        self._inherited.pop(VARIABLE, None)

    def _start(self, start: Start) -> None:
        if self._is_closing:
            self._tell(NotStarted(start.worker, "its host's agent has been told to end"))
            return
        told = dict(start.variables)
        environment = with_defaults(told, start.workers_here, self._inherited)
        try:
            process = WorkerProcess(start.worker, self._setup.command, environment)
        except OSError as error:
            self._tell(NotStarted(start.worker, str(error)))
            return
        self._memory_kills.follow(process.pid)
        self.follow(process)  # first: who hears that the launcher is gone is to end this one, too
        self._tell(Started(start.worker, process.pid))

    def _signal(self, message: Signal) -> None:
        number = signal.Signals(message.number)
        if message.worker is None:
            self.signal_all(number)
            return
        process = self._processes.get(message.worker)
        if process is None:  # it has ended
            return
        if number != signal.SIGUSR1:
            process.signal(number)
        elif not process.ask_what_it_waits_for():
            self._tell(Remark(f"worker {process.rank} has not begun to listen"))

    def _lose_launcher(self) -> None:
        self._is_closing = True
        if self.is_busy():
            self.escalation.begin(signal.SIGTERM, after_seconds=0)

    # ------------------------------------------------------------ what becomes of the workers

    def _tell(self, message: FromAgent) -> None:
        self._lines.send(FROM_AGENT.encode(message))

    def take_output(self, worker: int, stream: StreamName, chunk: bytes) -> None:
        self._tell(Output(worker, stream, chunk.decode("latin-1")))
        if self._lines.kept_bytes > _MOST_KEPT_BYTES:
            self.pipes.hold(True)

    def take_end(self, process: WorkerProcess) -> None:
        code = process.exit_code or 0
        is_killed = code == -signal.SIGKILL
        why = self._memory_kills.describe(process.pid) if is_killed else ""
        self._tell(Ended(process.rank, code, why))

    # ------------------------------------------------------------ the loop

    def obey(self, number: int) -> None:
        if number in STOP_SIGNALS and not self._is_closing:
            self._is_closing = True
            self._tell(Closing())

    def goes_on(self) -> bool:
        return not self._is_closing

    def seconds_to_next(self) -> float | None:
        bound = self._setup.silence_seconds
        if not bound or not self._lines.is_open:
            return None
        return max(0.0, self._heard_at + bound - SYSTEM_CLOCK.now())

    def pass_time(self) -> None:
        if self._heard != self._lines.heard:
            self._heard, self._heard_at = self._lines.heard, SYSTEM_CLOCK.now()
        elif self.seconds_to_next() == 0:
            bound = self._setup.silence_seconds
            with suppress(OSError):  # nobody reads that, perhaps
                sys.stderr.write(
                    f"the launcher has said nothing for {bound:g} s: ending its workers\n"
                )
            self._lines.close()
            self._lose_launcher()


def _private_ends() -> tuple[int, int]:
    """Returns stdin and stdout as descriptors that nothing else writes to or reads from."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return incoming, outgoing
