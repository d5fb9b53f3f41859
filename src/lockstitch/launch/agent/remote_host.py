"""The launcher's end of one host: the client of ssh or `srun` by which its agent runs there, and
the workers that the agent follows.

An agent says who it is before it is told anything. What keeps it from doing so, and what takes it
away later, ends all workers of its host, with the reason and the host's name.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final, Protocol

from lockstitch import __version__
from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import RemoteProtocolError
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
    NotStarted,
    Output,
    Signal,
    Start,
    Started,
)
from lockstitch.launch.process import describe_exit
from lockstitch.launch.screen import LineBuffer
from lockstitch.launch.stderr_tail import StderrTail
from lockstitch.versions import are_alike

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

    from lockstitch.launch.process_loop import ProcessLoop, StreamName
    from lockstitch.link.pulse import Pulse

START_SECONDS: Final = 60.0
"""How long an agent may take to say who it is."""
_KILL_SECONDS: Final = 2.0
"""How long an agent may take to kill its workers."""


class Listener(Protocol):
    """Who follows the workers of other hosts."""

    def take_output(self, worker: int, stream: StreamName, chunk: bytes) -> None:
        """Called with what a worker has written."""
        ...

    def take_end_elsewhere(self, worker: RemoteWorker) -> None:
        """Called when a worker has ended, after the last of its output."""
        ...

    def note(self, text: str) -> None:
        """Called with what the user should know."""
        ...


class RemoteWorker:
    """A worker of another host (`process.Worker`)."""

    is_stopped: Final = False  # nobody asks there

    def __init__(self, rank: int, host: RemoteHost) -> None:
        self.rank = rank
        self.host = host.name
        self.pid = 0
        self.exit_code: int | None = None
        self.why = ""
        """What the kernel says of one that was killed."""
        self.instead: StderrTail | None = None
        """What its host said where no agent has begun; None where one has."""
        self._host = host
        self._how = ""

    def __repr__(self) -> str:
        return f"<RemoteWorker {self.rank} on {self.host} · {self.describe_end()}>"

    def note_end(self, code: int, how: str = "") -> None:
        """Takes in that it has ended, in words where the code does not say how."""
        self.exit_code, self._how = code, how

    def describe_end(self) -> str:
        """See `Worker`."""
        if self.exit_code is None:
            return "runs"
        return f"{self._how or describe_exit(self.exit_code)} on host {self.host}"

    def ask_what_it_waits_for(self) -> bool:
        """See `Worker`; where it has no handler, its agent tells."""
        self.signal(signal.SIGUSR1)
        return True

    def signal(self, number: signal.Signals) -> None:
        """See `Worker`."""
        self._host.signal(number, self)


@dataclass(frozen=True)
class Common:
    """What all hosts of a job have in common: what each agent is told first, the loop, who follows
    the workers, whether agents live, and until when a host is to have done something."""

    setup: Begin
    loop: ProcessLoop
    listener: Listener
    pulse: Pulse
    deadlines: dict[RemoteHost, float] = field(default_factory=dict)


class RemoteHost:
    """One host. `client` is the process by which its agent is reached; `script` is written to its
    standard input first. All that happens is told in the loop."""

    def __init__(
        self,
        name: str,
        client: subprocess.Popen[bytes],
        script: bytes,
        common: Common,
    ) -> None:
        self.name = name
        self.workers: dict[int, RemoteWorker] = {}
        """Those that have not ended."""
        self.is_greeted = False
        self.is_closing = False
        """Whether it starts no more workers."""
        self._client = client
        self._common = common
        self._listener = common.listener
        self._waiting: list[Start] = []
        self._reason = ""
        common.deadlines[self] = SYSTEM_CLOCK.now() + START_SECONDS
        self._tail = StderrTail()
        self._stderr_lines = LineBuffer()
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stderr is not None
        self._stderr: IO[bytes] = client.stderr
        incoming, outgoing = (os.dup(pipe.fileno()) for pipe in (client.stdout, client.stdin))
        client.stdout.close()
        client.stdin.close()
        self.lines = Lines(common.loop.selector, incoming, outgoing, self._take, lambda: None)
        self.lines.write(script)
        common.loop.pipes.follow(self._stderr, self._take_stderr)
        common.loop.call_at_end(client.pid, self._note_end)

    def __repr__(self) -> str:
        state = "greeted" if self.is_greeted else "starting"
        return f"<RemoteHost {self.name} · {state} · {len(self.workers)} workers>"

    @property
    def has_ended(self) -> bool:
        """Whether its client has."""
        return self._client.returncode is not None

    # ------------------------------------------------------------ what it is told

    def start(self, worker: int, variables: Mapping[str, str], workers_here: int) -> RemoteWorker:
        """Has a worker started, as soon as the agent is there."""
        made = self.workers[worker] = RemoteWorker(worker, self)
        order = Start(worker, tuple(variables.items()), workers_here)
        if self.is_greeted:
            self.lines.send(TO_AGENT.encode(order))
        else:
            self._waiting.append(order)
        return made

    def signal(self, number: signal.Signals, worker: RemoteWorker | None = None) -> None:
        """Sends a signal to a worker that has not ended; to all, and what they have left behind,
        where `worker` is None. Where the agent does not obey SIGKILL its client is killed."""
        if worker is not None and worker.exit_code is not None:
            return
        if self.is_greeted:
            self.lines.send(TO_AGENT.encode(Signal(number, worker.rank if worker else None)))
            if number == signal.SIGKILL and worker is None:
                self._common.deadlines.setdefault(self, SYSTEM_CLOCK.now() + _KILL_SECONDS)
        elif number != signal.SIGUSR1:
            ended = list(self.workers) if worker is None else [worker.rank]
            self._waiting = [order for order in self._waiting if order.worker not in ended]
            for each in ended:
                self._end(each, -number, "it was told to end before it was started")
            if worker is None:
                self.lose("it was told to end")

    def close(self) -> None:
        """No more workers will be started: once those that run have ended, the agent does. Harmless
        when repeated."""
        self.is_closing = True
        if not self.workers:
            self.lines.close_outgoing()

    def kill(self) -> None:
        """Ends the client at once."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self._client.pid, signal.SIGKILL)

    def lose(self, reason: str) -> None:
        """Gives the agent up: kills its client, whose end is told with this reason."""
        self._reason = self._reason or reason
        self.is_closing = True
        self.kill()

    def pass_deadline(self) -> None:
        """Gives up an agent that has not done in time what it was to do."""
        if self.is_greeted:
            self.lose(f"its agent has not killed it within {_KILL_SECONDS:g} s")
        else:
            self.lose(f"its agent has not begun within {START_SECONDS:g} s")

    # ------------------------------------------------------------ what it says

    def _take(self, line: bytes) -> None:
        if not self.is_greeted:
            self._take_first(line)
            return
        try:
            message = FROM_AGENT.decode(line)
        except RemoteProtocolError:
            self._remark(line)
            return
        self._follow(message)

    def _take_first(self, line: bytes) -> None:
        if not line.startswith(HELLO):
            self._remark(line)
            return
        try:
            hello = HELLO_CODEC.decode(line[len(HELLO) :])
        except RemoteProtocolError as error:
            self.lose(str(error))
            return
        if not are_alike(hello.version, __version__):
            self.lose(
                f"Lockstitch {hello.version} in {hello.place}, and not {__version__} as the "
                "launcher has, is installed"
            )
            return
        self.is_greeted = True
        self._common.deadlines.pop(self, None)
        self._common.pulse.add(self.lines)
        self.lines.send(TO_AGENT.encode(self._common.setup))
        for order in self._waiting:
            self.lines.send(TO_AGENT.encode(order))
        self._waiting.clear()

    def _follow(self, message: FromAgent) -> None:
        if isinstance(message, Output):
            self._listener.take_output(
                message.worker, message.stream, message.text.encode("latin-1")
            )
        elif isinstance(message, Started):
            self.workers[message.worker].pid = message.pid
        elif isinstance(message, Ended):
            self._end(message.worker, message.code, why=message.why)
        elif isinstance(message, NotStarted):
            self._end(message.worker, 1, f"it could not be started: {message.why}")
        elif isinstance(message, Closing):
            self.is_closing = True
        else:
            self._listener.note(f"host {self.name}: {message.text}")

    def _end(self, number: int, code: int, how: str = "", why: str = "") -> None:
        worker = self.workers.pop(number)
        worker.why = why
        worker.note_end(code, how)
        self._listener.take_end_elsewhere(worker)
        if self.is_closing:
            self.close()

    def _remark(self, line: bytes) -> None:
        self._tail.add(line)
        self._listener.note(f"host {self.name}: {line.decode(errors='replace')}")

    def _take_stderr(self, chunk: bytes) -> None:
        for line in self._stderr_lines.feed(chunk):
            self._remark(line)

    # ------------------------------------------------------------ its end

    def _note_end(self, wait_status: int) -> None:
        self._client.returncode = code = os.waitstatus_to_exitcode(wait_status)
        # Somebody may hold the pipes open for ever: take what is there, await no end.
        while self.lines.read():
            pass
        self._common.loop.pipes.finish(self._stderr)
        if rest := self._stderr_lines.flush():
            self._remark(rest)
        self.lines.close()
        self.is_closing = True
        self._common.deadlines.pop(self, None)
        self._common.pulse.discard(self.lines)
        for number in list(self.workers):
            if not self.is_greeted:
                self.workers[number].instead = self._tail
            self._end(number, *self._how_lost(code))

    def _how_lost(self, code: int) -> tuple[int, str]:
        """Returns the code and the words for workers that are lost with their agent."""
        if self._reason:
            return 1, self._reason
        what = "its agent has ended" if self.is_greeted else "its agent could not be started"
        return code if code > 0 else 1, f"{what}: {describe_exit(code)}"
