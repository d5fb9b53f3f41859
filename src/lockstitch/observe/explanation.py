"""Why a job stands still: who waits for whom, which of them wait in a circle, and who is waited for
without waiting for anybody. No I/O: made of what processes have told.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstitch.attach.values import in_words
from lockstitch.observe.activities import Activities
from lockstitch.observe.launched import unseen_workers
from lockstitch.observe.participants import Participant, Wait, function_in_words, participants_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstitch.attach.values import (
        GroupReport,
        OtherWait,
    )
    from lockstitch.observe.grouping import Job

_PATIENCE_SECONDS: Final = 0.2
"""What is waited for since a shorter time may be on its way, and is no part of a circle."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """Somebody who is waited for, and does what is waited for without waiting for anybody.
    `waits`: those for whom it is, each once for each thing; `is_waiting`: other things that it
    does wait."""

    participant: str
    waits: tuple[Wait, ...]
    is_waiting: bool = False


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


def _unseen_participants(job: Job) -> Iterator[Participant]:
    """Those that only the launcher knows."""
    for each in unseen_workers(job):
        name = f"rank {each.rank}"
        yield Participant(name, str(each.rank), each.pid, each.host, launched=each)


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
        activities = Activities(participants, waits, self.patience_seconds)
        circles, culprits = tuple(activities.circles()), tuple(_culprits(old, activities))
        return Explanation(self.job, tuple(participants), waits, circles, culprits)

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
        whole = itertools.count()
        worker = one.worker
        if worker is not None:
            for call in worker.calls:
                target = self.by_worker.get(call.to, call.to)
                who = _thread_in_words(one, call.thread)
                function = function_in_words(call.function)
                what = f"called {function} on {target}, {call.seconds:.1f} s ago{who}"
                yield Wait(
                    one.name, target, "call", what, call.seconds, worker.name, call.number,
                    thread=call.thread, whole=next(whole), count=call.count,
                )  # fmt: skip
            for other in worker.waits:
                yield from self._other_waits(one, other, self.by_rpc_rank.get, next(whole))
        if worker is not None and one.report is not None and one.report.workers[0] != worker:
            return  # the groups are the first one's
        for other in one.process_waits:
            yield from self._other_waits(one, other, self._launched, next(whole), of_process=True)
        for group in one.groups:
            for wait in group.waits:
                number = next(whole)
                for rank in wait.missing or () if wait.is_submitted else ():
                    target = self._of_rank(group, rank)
                    what = f"waits for {target}: {in_words(wait)}"
                    yield Wait(one.name, target, "collective", what, wait.seconds, whole=number)

    def _launched(self, rank: int) -> str | None:
        return self.by_launched_rank.get(str(rank))

    def _other_waits(
        self,
        one: Participant,
        other: OtherWait,
        name_of: Callable[[int], str | None],
        whole: int,
        *,
        of_process: bool = False,
    ) -> Iterator[Wait]:
        """`name_of`: what a rank is called that is waited for."""
        named = [self.by_worker.get(name, name) for name in other.workers]
        ranked = [name_of(rank) or f"rank {rank}" for rank in other.ranks]
        seconds = self.patience_seconds if other.seconds is None else other.seconds
        is_of_passes = not (of_process or other.is_apart)
        for target in (*named, *ranked):
            yield Wait(
                one.name, target, "other", other.what, seconds,
                is_apart=other.is_apart, is_of_passes=is_of_passes, whole=whole,
            )  # fmt: skip

    def _of_rank(self, group: GroupReport, rank: int) -> str:
        known = self.by_rank.get((group.kind, group.name, rank))
        if known is None and group.kind == "hvd":
            known = self.by_launched_rank.get(str(rank))
        return known or (f"rank {rank}" + (f" of group {group.name!r}" if group.name else ""))


def _thread_in_words(one: Participant, ident: int) -> str:
    thread = one.thread(ident)
    if thread is None:
        return ""
    if thread.kind == "main":
        return "; its main thread waits for the answer"
    if thread.serves:
        return f"; {thread.serves}, which it serves, waits for the answer"
    return f"; its thread {thread.name!r} waits for the answer"


def _names_of(one: Participant) -> tuple[str, ...]:
    """By what others call it when they wait for it."""
    if one.worker is not None:
        return (one.worker.name,)
    told = one.report if one.report is not None else one.silence
    return () if told is None else told.card.names


def _culprits(waits: Sequence[Wait], activities: Activities) -> Iterator[Culprit]:
    by_target: dict[str, list[Wait]] = defaultdict(list)
    for wait in waits:
        if not activities.leads_on(activities.target_of(wait), with_apart=wait.is_apart):
            by_target[wait.target].append(wait)
    waiters = {each.waiter for each in waits if each.target != each.waiter and not each.is_apart}
    for target, its in sorted(by_target.items(), key=lambda each: -len(each[1])):
        yield Culprit(target, tuple(its), target in waiters)
