"""What each task does: tell the others where it is, learn its rank, and run that as a process.

Nothing here needs torch, which only the rank's own process imports.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import CollectiveError
from lockstitch.launch.process import environment_among_hosts
from lockstitch.launcher_link.client import ADDRESS, REACHED_AT, WORKER
from lockstitch.link.machine import host_identity
from lockstitch.link.ports import find_ports
from lockstitch.link.sockets import HeldPort
from lockstitch.spark.context import pyspark
from lockstitch.spark.placement import TaskPlace, rank_tasks
from lockstitch.spark.rank import Ended, run_rank
from lockstitch.spark.reports import (
    MOST_BYTES,
    Failed,
    Finished,
    Reports,
    Running,
    Said,
    StreamName,
    write_line,
)
from lockstitch.trust import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lockstitch.launcher_link.fixed_ranks import WorkerRanks

DEVICES: Final = "LOCKSTITCH_SPARK_GPUS"
"""The environment variable with the addresses of the GPUs that Spark has given to the task, with
commas between."""

_OF_ANOTHER_JOB: Final = {ADDRESS, WORKER, REACHED_AT, "LOCKSTITCH_STORE"}
# Those who fail because another is gone may be heard before that one, whose end takes longer.
_SETTLING_SECONDS: Final = 2.0


@dataclass(frozen=True)
class TaskTerms:
    """What all tasks of a job are told. `call`: a broadcast of the pickled function and its
    arguments. `driver`: where it hears reports. `has_logs`: whether what a task writes goes into a
    log of its executor, and not to where the driver writes."""

    call: Any
    environment: Mapping[str, str]
    executable: str | None
    driver: str
    has_logs: bool
    secret_text: str = field(repr=False)

    @property
    def secret(self) -> Secret:
        """The job's."""
        return Secret.from_text(self.secret_text)

    def inherited(
        self, devices: Iterable[str], environment: Mapping[str, str] = os.environ
    ) -> dict[str, str]:
        """Returns the variables of a rank but for its place. `environment`: the executor's."""
        kept = {name: it for name, it in environment.items() if name not in _OF_ANOTHER_JOB}
        # Modules are found as Spark has them found, those of `addPyFile` too.
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        return {**kept, "PYTHONPATH": path, **self.environment, DEVICES: ",".join(devices)}

    def run(self, reports: Reports, environment: Mapping[str, str]) -> Ended:
        """Runs a rank, and tells the driver what it says and how it ends. When the driver hangs up,
        the rank is killed. Raises `CollectiveError` then."""

        def pass_on(stream: StreamName, text: str) -> None:
            with suppress(OSError):  # the driver has hung up: see below
                reports.tell(Said(stream, text))
            if self.has_logs:
                with suppress(OSError):  # the disk of the log is full, say; the driver has the line
                    write_line(getattr(sys, stream), text)

        ended = run_rank(
            self.call.value, self.secret, environment, pass_on, self.executable, reports.await_end
        )
        try:
            reports.tell(Finished() if ended.result is not None else _failure(ended))
        except OSError as error:
            raise CollectiveError(
                f"the driver has hung up, which ends its ranks: {error}; {ended.how}"
            ) from error
        return ended


@dataclass(frozen=True)
class BarrierTask:
    """A task of a barrier stage, all of whose ranks stand and fall together; Spark carries it to
    the executors."""

    terms: TaskTerms

    def __call__(self, task: int, _rows: Iterable[object]) -> Iterator[tuple[int, bytes]]:
        """Yields the task's rank and what that returned, pickled. Raises `CollectiveError` where
        the rank fails."""
        context = pyspark().BarrierTaskContext.get()
        check_attempt(context)
        ports = find_ports(None, {**os.environ, **self.terms.environment})
        reports = Reports(self.terms.driver, self.terms.secret, task)
        with reports, HeldPort(ports=ports) as port:
            # By which executors reach each other.
            here = context.getTaskInfos()[task].address.rpartition(":")[0].strip("[]")
            place = TaskPlace(host_identity(), here, port.number)
            places = [TaskPlace.decode(text) for text in context.allGather(place.encode())]
            ranks = rank_tasks(places)[task]
            reports.tell(Running(ranks.rank, here))
            inherited = self.terms.inherited(devices_of(context))
            ended = self.terms.run(reports, environment_of(ranks, places[0], inherited))
            if ended.result is None:
                if ended.is_of_lost_peer:
                    SYSTEM_CLOCK.wait(threading.Event(), _SETTLING_SECONDS)
                raise CollectiveError(
                    f"rank {ranks.rank} has failed: {ended.how}\n{ended.last_words}"
                )
        yield ranks.rank, ended.result


def environment_of(
    ranks: WorkerRanks, first: TaskPlace, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables of a rank in a fixed world. `first`: where rank 0 is."""
    address = "127.0.0.1" if ranks.local_size == ranks.size else first.address
    return environment_among_hosts(ranks, (address, first.port), inherited)


def check_attempt(context: Any) -> None:
    """Raises `CollectiveError` where Spark tries a task again."""
    if context.attemptNumber():
        raise CollectiveError("this task has run before, and no rank runs twice")


def _failure(ended: Ended) -> Failed:
    error = (ended.error or b"").hex()
    return Failed(ended.how, ended.is_of_lost_peer, error if len(error) < MOST_BYTES // 2 else "")


def devices_of(context: Any) -> tuple[str, ...]:
    """Returns the addresses of the GPUs that Spark has given to a task."""
    gpu = context.resources().get("gpu")
    return () if gpu is None else tuple(gpu.addresses)
