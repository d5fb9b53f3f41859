"""Who calls whom, how often, and how long it takes: made of what the workers of a job have counted.

Calls are counted only while somebody looks (`lockstitch.attach.recorder`): the first look begins
it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstitch.attach.traffic import added, grown, quantile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lockstitch.attach.values import CallTraffic
    from lockstitch.observe.grouping import Job


@dataclass(frozen=True, slots=True)
class Edge:
    """The calls of one worker on another: how many have ended, `sent_bytes` from caller to callee,
    and `received_bytes` back."""

    caller: str
    callee: str
    calls: int
    calls_per_second: float
    sent_bytes: int
    sent_bytes_per_second: float
    received_bytes: int
    received_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class FunctionCalls:
    """The calls of one function, whoever made them on whom. Half of them took no longer than
    `p50_seconds`, and 99 of 100 no longer than `p99_seconds`, from the call to its result, to
    within an eighth; `bytes_per_second`: there and back."""

    function: str
    calls: int
    failed: int
    calls_per_second: float
    bytes_per_second: float
    total_seconds: float
    p50_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a job that ended within some `seconds`. The edges with most calls come first,
    and the functions that took most time."""

    seconds: float
    edges: tuple[Edge, ...]
    functions: tuple[FunctionCalls, ...]


@dataclass(slots=True)
class _Sum:
    count: int = 0
    failed: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    bins: tuple[int, ...] = field(default=())
    calls_per_second: float = 0.0
    sent_per_second: float = 0.0
    received_per_second: float = 0.0

    def add(self, one: CallTraffic, seconds: float) -> None:
        self.count += one.count
        self.failed += one.failed
        self.sent += one.sent
        self.received += one.received
        self.seconds += one.seconds
        self.bins = added(self.bins, one.bins)
        self.calls_per_second += one.count / seconds
        self.sent_per_second += one.sent / seconds
        self.received_per_second += one.received / seconds


def calls(job: Job, before: Job | None = None) -> Calls:
    """Returns which calls have ended in a job since an earlier look at it.

    `job`: from `observe.status`. `before`: an earlier one; None: those that ended while the workers
    were looked at (the `rate_seconds` of `status`).
    """
    edges: defaultdict[tuple[str, str], _Sum] = defaultdict(_Sum)
    functions: defaultdict[str, _Sum] = defaultdict(_Sum)
    longest = 0.0
    for caller, callee, traffic, seconds in _made(job, before):
        edges[caller, callee].add(traffic, seconds)
        functions[traffic.function].add(traffic, seconds)
        longest = max(longest, seconds)
    return Calls(
        longest,
        tuple(
            Edge(
                caller, callee, each.count, each.calls_per_second, each.sent, each.sent_per_second,
                each.received, each.received_per_second,
            )
            for (caller, callee), each in sorted(edges.items(), key=lambda e: -e[1].count)
        ),
        tuple(
            _function(name, each)
            for name, each in sorted(functions.items(), key=lambda e: -e[1].seconds)
        ),
    )  # fmt: skip


def _function(name: str, each: _Sum) -> FunctionCalls:
    return FunctionCalls(
        name,
        each.count,
        each.failed,
        each.calls_per_second,
        each.sent_per_second + each.received_per_second,
        each.seconds,
        quantile(each.bins, 0.5) or 0.0,
        quantile(each.bins, 0.99) or 0.0,
    )


def _made(job: Job, before: Job | None) -> Iterator[tuple[str, str, CallTraffic, float]]:
    """Yields caller, callee, what ended, and in how many seconds: as the callers tell it."""
    earlier = {
        (report.card.pid, worker.name): (report, worker)
        for report in (before.processes if before is not None else ())
        for worker in report.workers
    }
    for report in job.processes:
        for worker in report.workers:
            known = earlier.get((report.card.pid, worker.name))
            ended: Sequence[CallTraffic]
            if before is None:
                ended, seconds = worker.recent, worker.recent_seconds
            elif known is None:
                continue
            else:
                then, its_part = known
                ended = grown(worker.traffic, its_part.traffic)
                seconds = report.told_at - then.told_at
            for each in ended:
                if each.role == "made" and each.count:
                    yield worker.name, each.peer, each, max(seconds, 1e-3)
