"""What tasks tell the driver while they run: who they are, what their ranks say, how these end.

It goes over a `link.line`, which the job's secret opens; results go Spark's own way. Messages are
JSON and never a pickle. What a rank has raised is one, in a message as text: it is read only by the
driver, from a task that has proved to have the secret.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, Literal

from lockstitch.errors import HandshakeError, RemoteProtocolError
from lockstitch.ids import WorkerInfo
from lockstitch.link.codec import Codec
from lockstitch.link.line import call
from lockstitch.link.sockets import connect

if TYPE_CHECKING:
    from lockstitch.link.line import Line
    from lockstitch.link.sockets import SocketStream
    from lockstitch.trust import Secret

PURPOSE: Final = "reports of tasks"
"""The purpose of the secret that is derived from the job's."""
DRIVER: Final = WorkerInfo("driver", 0)
"""The driver, as it greets tasks."""
MOST_BYTES: Final = 1 << 24
"""The length of the longest message, in bytes."""
StreamName = Literal["stdout", "stderr"]
_CONNECT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """The task is about to run its rank. `number`: that rank, or, where ranks come and go, the
    number of the worker."""

    number: int
    host: str


@dataclass(frozen=True, slots=True)
class Said:
    """A line that the rank has written."""

    stream: StreamName
    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank has failed, `how` in words. `is_of_lost_peer`: because another rank was gone.
    `error`: what it has raised, as `runtime.remote_errors` describes it, pickled and written in
    hexadecimal digits; empty where it has raised nothing, or nothing that fits."""

    how: str
    is_of_lost_peer: bool
    error: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The rank has returned."""


Report = Running | Said | Failed | Finished

CODEC: Final[Codec[Report]] = Codec(
    *(Running, Said, Failed, Finished), complaint="not a report of a task"
)
"""Turns reports into bytes and back; raises `RemoteProtocolError` for what is none."""


def task_info(task: int) -> WorkerInfo:
    """Returns the task of that number, as it greets the driver."""
    return WorkerInfo(f"task{task}", task)


def write_line(stream: IO[str], text: str) -> None:
    """Writes a line, in which characters that the stream's encoding lacks are escaped. Raises
    `OSError`, and `ValueError` where the stream is closed."""
    try:
        stream.write(f"{text}\n")
    except UnicodeEncodeError as error:
        escaped = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
        stream.write(f"{escaped}\n")
    stream.flush()


class Reports:
    """A task's line to the driver at `address` (`tcp:HOST:PORT`); a context manager, after which it
    is closed. Raises `ConnectionError` where the driver cannot be reached or does not let it in."""

    def __init__(self, address: str, secret: Secret, task: int) -> None:
        self._line: Line[SocketStream] = _call(address, secret, task)

    @property
    def own_host(self) -> str:
        """The address of this task's host on the way to the driver."""
        return self._line.stream.own_host()

    def tell(self, report: Report) -> None:
        """Sends a report. Raises `OSError` where the driver is gone."""
        self._line.send(CODEC.encode(report))

    def await_end(self) -> None:
        """Waits until the driver has hung up, or until this line is closed."""
        with suppress(OSError, RemoteProtocolError):
            while True:
                with suppress(BlockingIOError):  # as may be told of a wait without an end
                    for _ in self._line.read():
                        pass

    def __enter__(self) -> Reports:
        return self

    def __exit__(self, *_error: object) -> None:
        self._line.close()


def _call(address: str, secret: Secret, task: int) -> Line[SocketStream]:
    try:
        return call(
            connect(address, _CONNECT_SECONDS),
            task_info(task),
            DRIVER.worker,
            secret.of(PURPOSE),
            MOST_BYTES,
            timeout_seconds=_CONNECT_SECONDS,
        )
    except (OSError, HandshakeError) as error:
        raise ConnectionError(
            f"task {task} does not reach the driver at {address}: {error}. That is "
            "spark.driver.host, which executors call too, and a port that was free there: see "
            "whether a firewall closes it"
        ) from error
