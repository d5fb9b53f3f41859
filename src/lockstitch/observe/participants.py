"""Who takes part in a job, and that one of them waits for another. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.attach.values import (
        Counter,
        GroupReport,
        LaunchedWorker,
        OtherWait,
        ProcessReport,
        ServedCall,
        Silence,
        ThreadReport,
        WorkerReport,
    )
    from lockstitch.observe.grouping import Job


_OURS: Final = {
    "lockstitch.nn.pipelining.running:run_row": "a step of a pipeline",
    "lockstitch.rref.proxy:run_method": "a method of a reference's value",
    "lockstitch.rpc.worker_groups.sources:ask_source": "the next item of a stream",
}
"""What the program has asked for by functions of ours."""


def function_in_words(name: str) -> str:
    """Returns what a function is called: mostly as it is."""
    return _OURS.get(name, name)


@dataclass(frozen=True, slots=True)
class Wait:
    """`waiter` waits for `target`; both are names of participants. `what`: as a sentence about the
    waiter, without its name."""

    waiter: str
    target: str
    kind: Literal["call", "collective", "other"]
    what: str
    seconds: float
    worker: str = ""
    number: int = 0
    """Of a call: the name of the worker that has made it, and its number (`PendingCall`)."""
    is_apart: bool = False
    """What the waiter serves for others does not wait for it (`OtherWait`)."""
    is_of_passes: bool = False
    """It is a backward pass or a pipeline of the waiter that waits, for one of the target."""
    thread: int = 0
    """Of a call: the thread that waits for the answer (`PendingCall`)."""
    whole: int = 0
    """What is waited for together has the same number."""
    count: int = 1
    """So many such calls it stands for, of which it is the oldest (`PendingCall`)."""


@dataclass(frozen=True, slots=True)
class Participant:
    """One who may wait, or be waited for: a worker or a rank. `report`: what its process has told;
    None where it did not answer, and `silence` says why. `worker`: its part of that, where it is a
    worker of `rpc`."""

    name: str
    rank: str
    pid: int
    host: str
    report: ProcessReport | None = None
    worker: WorkerReport | None = None
    silence: Silence | None = None
    outside: str = ""
    """Its stacks as py-spy sees them, where that was asked."""
    launched: LaunchedWorker | None = None
    """What its launcher knows of it, where it has told nothing itself."""

    @property
    def groups(self) -> tuple[GroupReport, ...]:
        """The groups in which it is a rank."""
        return () if self.report is None else self.report.groups

    @property
    def process_waits(self) -> tuple[OtherWait, ...]:
        """What its process waits for in whole."""
        return () if self.report is None else self.report.waits

    @property
    def serving(self) -> tuple[ServedCall, ...]:
        """The calls that it serves."""
        return () if self.worker is None else self.worker.serving

    def served(self, wait: Wait) -> ServedCall | None:
        """Returns how it serves a call that is waited for; None where it does not."""
        its = (each for each in self.serving if each.is_of(wait.worker, wait.number))
        return next(its, None)

    @property
    def counters(self) -> tuple[Counter, ...]:
        """Those of its worker and of its ranks; a name may occur for each of its groups."""
        of_worker = () if self.worker is None else self.worker.counters
        return (*of_worker, *(each for group in self.groups for each in group.counters))

    def totals(self) -> dict[str, float]:
        """Returns the values of its counters, those of several groups together."""
        totals: dict[str, float] = {}
        for each in self.counters:
            totals[each.name] = totals.get(each.name, 0.0) + each.value
        return totals

    @property
    def threads(self) -> tuple[ThreadReport, ...]:
        """Where the threads of its process are, if that was told."""
        return () if self.report is None else self.report.threads

    @property
    def main_thread(self) -> ThreadReport | None:
        """Where its main thread is."""
        return next((each for each in self.threads if each.kind == "main"), None)

    def thread(self, ident: int) -> ThreadReport | None:
        """Returns where a thread is, by its number in Python."""
        return next((each for each in self.threads if each.ident == ident), None)

    def other_threads(self) -> list[ThreadReport]:
        """The other threads that run the user's code on their own account."""
        return [each for each in self.threads if each.kind == "user"]


def participants_of(job: Job) -> list[Participant]:
    """Returns the workers and ranks of a job, in the order of their ranks. A process with several
    workers (a test's, say) is each of them."""
    found = [
        Participant(name, rank, report.card.pid, report.host, report, worker)
        for report in job.processes
        for name, rank, worker in _faces_of(report)
    ]
    found += [
        Participant(
            _name_of(silence), silence.card.rank, silence.card.pid, silence.host, silence=silence
        )
        for silence in job.silent
    ]
    found.sort(key=lambda each: int(each.rank) if each.rank.isdecimal() else 1 << 62)
    names = [each.name for each in found]
    return [
        each if names.count(each.name) == 1 else replace(each, name=f"{each.name} (pid {each.pid})")
        for each in found
    ]


def _faces_of(report: ProcessReport) -> Iterator[tuple[str, str, WorkerReport | None]]:
    rank = next((str(each.rank) for each in report.groups), report.card.rank)
    if len(report.workers) > 1:
        yield from ((each.name, str(each.rank), each) for each in report.workers)
    elif report.workers:
        yield report.workers[0].name, rank or str(report.workers[0].rank), report.workers[0]
    elif report.card.names:
        yield report.card.names[0], rank, None
    else:
        yield f"rank {rank}" if rank else f"process {report.card.pid}", rank, None


def _name_of(silence: Silence) -> str:
    card = silence.card
    if card.names:
        return card.names[0]
    return f"rank {card.rank}" if card.rank else f"process {card.pid}"
