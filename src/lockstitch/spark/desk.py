"""The driver's end of its tasks' reports: shows what ranks say, and knows which failed first."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, ClassVar, Final

import cloudpickle

from lockstitch.launcher_link.server import LauncherServer
from lockstitch.runtime import remote_errors
from lockstitch.spark.reports import (
    CODEC,
    DRIVER,
    MOST_BYTES,
    PURPOSE,
    Failed,
    Finished,
    Report,
    Running,
    Said,
    write_line,
)

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable

    from lockstitch.ids import WorkerInfo
    from lockstitch.trust import Secret

_GONE: Final = "its task has ended without a word: it was killed, or its executor was lost"


class _Server(LauncherServer):
    me: ClassVar[WorkerInfo] = DRIVER
    codec = CODEC
    most_bytes = MOST_BYTES


@dataclass(frozen=True)
class Outputs:
    """Where the driver shows what ranks say; None: its own stdout and stderr, as they are then.
    `is_timed`: each line begins with the time."""

    stdout: IO[str] | None = None
    stderr: IO[str] | None = None
    is_timed: bool = False

    def show(self, number: int, said: Said) -> None:
        """Writes a line, marked with the number of the rank (or worker) and the stream as the
        original marks it. Raises what writing raises."""
        when = time.strftime("%a %b %d %H:%M:%S %Y") if self.is_timed else ""
        given = self.stdout if said.stream == "stdout" else self.stderr
        stream = getattr(sys, said.stream) if given is None else given
        write_line(stream, f"{when}[{number}]<{said.stream}>:{said.text}")


@dataclass(frozen=True)
class RankFailure:
    """How a rank has failed. `who`: `rank 3`, or `worker 3` where ranks come and go. `order`: 0 for
    the first that was heard of. `is_unexplained`: nobody who saw it has told; Spark may know
    more."""

    who: str
    host: str
    how: str
    is_of_lost_peer: bool
    order: int
    error: BaseException | None
    is_unexplained: bool = False

    def __str__(self) -> str:
        text = f"{self.who} on {self.host} failed first: {self.how}"
        return text if self.error is None else f"{text}; it raised {self.error!r}"


class Desk:
    """Listens at `address` (`tcp:HOST:PORT`) for the reports of tasks, in a loop that sleeps in
    `selector`. `noun`: what the numbers count that tasks tell, ranks or workers."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        secret: Secret,
        address: str,
        outputs: Outputs,
        noun: str = "rank",
    ) -> None:
        self._outputs = outputs
        self._noun = noun
        self._running: dict[int, Running] = {}
        self._ended: set[int] = set()
        self._gone: set[int] = set()
        self._failures: list[RankFailure] = []
        self.on_end: Callable[[int], None] | None = None
        """Called with a task that has failed, or has hung up before its rank had returned."""
        self.server = _Server(selector, secret.of(PURPOSE), self._hear, address)
        self.server.on_lost = self._note_lost

    def __repr__(self) -> str:
        return f"<Desk · {self.started} tasks have begun · {len(self._ended)} ended>"

    @property
    def started(self) -> int:
        """How many tasks have begun to run their ranks."""
        return len(self._running)

    @property
    def ended(self) -> int:
        """How many have heard the end of their ranks, and told it."""
        return len(self._ended)

    def host_of(self, task: int) -> str:
        """Returns the address of the host of a task that has begun."""
        return self._running[task].host

    @property
    def is_quiet(self) -> bool:
        """Whether all tasks that have begun have hung up."""
        return self._running.keys() <= self._gone

    @property
    def first_failure(self) -> RankFailure | None:
        """The failure to blame: the first of those that are not because of another rank, or else
        the first."""
        return min(
            self._failures, key=lambda each: (each.is_of_lost_peer, each.order), default=None
        )

    def close(self) -> None:
        """Hangs up; harmless when repeated."""
        self.server.close()

    # ------------------------------------------------------------ in the loop

    def _hear(self, task: int, report: Report) -> None:
        if isinstance(report, Running):
            self._running[task] = report
        elif isinstance(report, Said):
            self._outputs.show(self._running[task].number, report)
        elif isinstance(report, Failed):
            self._note_failure(task, report)
        elif isinstance(report, Finished):
            self._ended.add(task)

    def _note_lost(self, task: int) -> None:
        self._gone.add(task)
        if task not in self._ended and task in self._running:
            self._note_failure(task, Failed(_GONE, is_of_lost_peer=False, error=""))

    def _note_failure(self, task: int, report: Failed) -> None:
        self._ended.add(task)
        error = None
        if report.error:
            error = remote_errors.rebuild(cloudpickle.loads(bytes.fromhex(report.error)))
        self._failures.append(
            RankFailure(
                f"{self._noun} {self._running[task].number}",
                self._running[task].host,
                report.how,
                report.is_of_lost_peer,
                len(self._failures),
                error,
                is_unexplained=report.how == _GONE,
            )
        )
        if self.on_end is not None:
            self.on_end(task)
