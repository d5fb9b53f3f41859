"""Why a job stands still: who waits for whom, which of them wait in a circle, and who is waited for
without waiting for anybody. No I/O: made of what processes have told.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from lockstitch.attach.values import in_words
from lockstitch.observe.cycles import find_cycles
from lockstitch.observe.launched import unseen_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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

_PATIENCE_SECONDS: Final = 0.2
"""What is waited for since a shorter time may be on its way, and is no part of a circle."""


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

    @property
    def counters(self) -> tuple[Counter, ...]:
        """Those of its worker and of its ranks; a name may occur for each of its groups."""
        of_worker = () if self.worker is None else self.worker.counters
        return (*of_worker, *(each for group in self.groups for each in group.counters))

    @property
    def main_thread(self) -> ThreadReport | None:
        """Where its main thread is."""
        threads = () if self.report is None else self.report.threads
        return next((each for each in threads if each.kind == "main"), None)

    def other_threads(self) -> list[ThreadReport]:
        """The other threads that run the user's code on their own account."""
        threads = () if self.report is None else self.report.threads
        return [each for each in threads if each.kind == "user"]


@dataclass(frozen=True, slots=True)
class Culprit:
    """Somebody who is waited for, and waits for nobody. `waits`: those for whom it is, each once
    for each thing."""

    participant: str
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a job waits for. `circles`: each a shortest one, its waits in order; `culprits`: the
    others who hold it up."""

    job: Job
    participants: tuple[Participant, ...]
    waits: tuple[Wait, ...]
    circles: tuple[tuple[Wait, ...], ...]
    culprits: tuple[Culprit, ...]


def explain(job: Job, *, patience_seconds: float = _PATIENCE_SECONDS) -> Explanation:
    """Finds out who holds a job up. `patience_seconds`: what has been waited for since a shorter
    time makes no circle."""
    return _Explaining(job, patience_seconds).explanation()


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


def _unseen_participants(job: Job) -> Iterator[Participant]:
    """Those that only the launcher knows."""
    for each in unseen_workers(job):
        name = f"rank {each.rank}"
        yield Participant(name, str(each.rank), each.pid, each.host, launched=each)


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


@dataclass
class _Explaining:
    job: Job
    patience_seconds: float
    by_worker: dict[str, str] = field(default_factory=dict)
    by_rpc_rank: dict[int, str] = field(default_factory=dict)
    by_rank: dict[tuple[str, str, int], str] = field(default_factory=dict)
    by_launched_rank: dict[str, str] = field(default_factory=dict)

    def explanation(self) -> Explanation:
        participants = [*participants_of(self.job), *_unseen_participants(self.job)]
        for each in participants:
            self._learn(each)
        waits = tuple(wait for each in participants for wait in self._waits_of(each))
        old = [wait for wait in waits if wait.seconds >= self.patience_seconds]
        # Who waits in `shutdown` serves calls meanwhile: those do not wait for what it waits for.
        firm = [wait for wait in old if not wait.is_apart]
        circles = tuple(
            tuple(_oldest(firm, a, b) for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
            for cycle in find_cycles(_edges_of(firm))
        )
        return Explanation(self.job, tuple(participants), waits, circles, tuple(_culprits(old)))

    def _learn(self, participant: Participant) -> None:
        for name in _names_of(participant):
            self.by_worker[name] = participant.name
        if participant.worker is not None:
            self.by_rpc_rank[participant.worker.rank] = participant.name
        for group in participant.groups:
            self.by_rank.setdefault((group.kind, group.name, group.rank), participant.name)
        if participant.rank:
            self.by_launched_rank.setdefault(participant.rank, participant.name)

    def _waits_of(self, one: Participant) -> Iterator[Wait]:
        worker = one.worker
        if worker is not None:
            for call in worker.calls:
                target = self.by_worker.get(call.to, call.to)
                who = _thread_in_words(one, call.thread)
                what = f"called {call.function} on {target}, {call.seconds:.1f} s ago{who}"
                yield Wait(one.name, target, "call", what, call.seconds, worker.name, call.number)
            yield from self._other_waits(one, worker.waits, self.by_rpc_rank.get)
        if worker is not None and one.report is not None and one.report.workers[0] != worker:
            return  # the groups are the first one's
        of_launched = self.by_launched_rank.get
        yield from self._other_waits(one, one.process_waits, lambda rank: of_launched(str(rank)))
        for group in one.groups:
            for wait in group.waits:
                for rank in wait.missing or () if wait.is_submitted else ():
                    target = self._of_rank(group, rank)
                    what = f"waits for {target}: {in_words(wait)}"
                    yield Wait(one.name, target, "collective", what, wait.seconds)

    def _other_waits(
        self, one: Participant, others: Iterable[OtherWait], name_of: Callable[[int], str | None]
    ) -> Iterator[Wait]:
        """`name_of`: what a rank is called that is waited for."""
        for other in others:
            named = [self.by_worker.get(name, name) for name in other.workers]
            ranked = [name_of(rank) or f"rank {rank}" for rank in other.ranks]
            for target in (*named, *ranked):
                seconds, is_apart = self.patience_seconds, other.is_apart
                yield Wait(one.name, target, "other", other.what, seconds, is_apart=is_apart)

    def _of_rank(self, group: GroupReport, rank: int) -> str:
        known = self.by_rank.get((group.kind, group.name, rank))
        if known is None and group.kind == "hvd":
            known = self.by_launched_rank.get(str(rank))
        return known or (f"rank {rank}" + (f" of group {group.name!r}" if group.name else ""))


def _thread_in_words(one: Participant, ident: int) -> str:
    threads = () if one.report is None else one.report.threads
    thread = next((each for each in threads if each.ident == ident), None)
    if thread is None:
        return ""
    if thread.kind == "main":
        return "; its main thread waits for the answer"
    if thread.serves:
        return f"; {thread.serves}, which it serves, waits for the answer"
    return f"; its thread {thread.name!r} waits for the answer"


def _oldest(waits: list[Wait], waiter: str, target: str) -> Wait:
    between = [each for each in waits if (each.waiter, each.target) == (waiter, target)]
    return max(between, key=lambda each: each.seconds)


def _names_of(one: Participant) -> tuple[str, ...]:
    """By what others call it when they wait for it."""
    if one.worker is not None:
        return (one.worker.name,)
    told = one.report if one.report is not None else one.silence
    return () if told is None else told.card.names


def _edges_of(waits: Iterable[Wait]) -> dict[str, list[str]]:
    """Who waits for whom. That a worker calls itself holds it up only where it waits for nobody
    else: another thread serves that."""
    edges: dict[str, list[str]] = defaultdict(list)
    for wait in waits:
        edges[wait.waiter].append(wait.target)
    return {
        waiter: [each for each in targets if each != waiter] or targets
        for waiter, targets in edges.items()
    }


def _culprits(waits: Sequence[Wait]) -> Iterator[Culprit]:
    by_target: dict[str, list[Wait]] = defaultdict(list)
    for wait in waits:
        if wait.waiter != wait.target:
            by_target[wait.target].append(wait)
    waiters = {each.waiter for each in waits}
    firm = {each.waiter for each in waits if not each.is_apart}
    for target, its in sorted(by_target.items(), key=lambda each: -len(each[1])):
        if target not in (waiters if all(each.is_apart for each in its) else firm):
            yield Culprit(target, tuple(its))
