"""The answer of a process: what its sources tell, within the time that the question gives.

A source that takes longer (it waits for a lock that somebody holds who stands still) is left alone,
and the answer says so: the rest of it explains, as a rule, who that is.
"""

from __future__ import annotations

import _thread
import os
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from lockstitch.attach.recorder import RECORDER
from lockstitch.attach.spans import MOST_SPANS
from lockstitch.attach.system import look_at
from lockstitch.attach.threads import look_at_threads
from lockstitch.attach.traffic import grown
from lockstitch.attach.values import GroupReport, ProcessReport, Question, WorkerReport
from lockstitch.link.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.attach.sources import Sources
    from lockstitch.attach.values import CallTraffic, Card, Recording, SystemReport, ThreadReport

T = TypeVar("T")
R = TypeVar("R", WorkerReport, GroupReport)

REPORTS: Final = Codec(ProcessReport, complaint="this is no report of a process", by_name=True)


def make_report(card: Card, sources: Sources, question: Question) -> ProcessReport:
    """Asks the sources of this process."""
    ends_at = time.monotonic() + question.seconds
    gaps: list[str] = []
    if question.counters:
        RECORDER.count()
    recording = _record(card, question)
    threads: tuple[ThreadReport, ...] = ()
    if question.threads or question.stacks:
        threads = tuple(look_at_threads(stacks=question.stacks))
    # As in `_record`: a launcher does not stand still for it.
    is_rate_asked = question.rate_seconds > 0 and card.kind != "launcher"
    growth = _Growth(sources, question) if is_rate_asked else None
    workers = _from_all(sources.workers, question, ends_at, gaps)
    groups = _from_all(sources.groups, question, ends_at, gaps)
    waits = _from_all(sources.waits if question.waits else (), question, ends_at, gaps)
    system = look_at(os.getpid())
    if growth is not None:
        workers = [growth.of(each) for each in workers]
        groups = [growth.of(each) for each in groups]
        system = growth.of_system(system)
    return ProcessReport(
        card=card,
        host=socket.gethostname(),
        system=system,
        workers=tuple(workers),
        groups=tuple(groups),
        waits=tuple(waits),
        threads=_with_served(threads, workers),
        launched=tuple(sources.launched()) if sources.launched is not None else (),
        step=sources.step() if sources.step is not None else None,
        gaps=tuple(gaps),
        recording=recording,
        told_at=time.time(),
    )


def _record(card: Card, question: Question) -> Recording | None:
    # A launcher answers in the loop in which it follows its workers, and has nothing to record.
    if question.record_seconds <= 0 or card.kind == "launcher":
        return None
    return RECORDER.record(question.record_seconds, question.most_spans or MOST_SPANS)


def _from_all(
    sources: Sequence[Callable[[Question], Sequence[T]]],
    question: Question,
    ends_at: float,
    gaps: list[str],
) -> list[T]:
    told: list[T] = []
    for source in list(sources):
        answer = _Answer(source, question)
        told += answer.within(max(0.0, ends_at - time.monotonic()), gaps)
    return told


class _Answer:
    """What a source tells, on a thread of its own."""

    def __init__(self, source: Callable[[Question], Sequence[T]], question: Question) -> None:
        self._source = source
        self._question = question
        self._told: Sequence[object] = ()
        self._error = ""
        self._is_there = _thread.allocate_lock()
        self._is_there.acquire()

    def within(self, seconds: float, gaps: list[str]) -> list[T]:
        """Returns it; nothing, and a line more in `gaps`, where it does not come in time."""
        try:
            _thread.start_new_thread(self._ask, ())
        except RuntimeError as error:
            self._error = repr(error)
            self._is_there.release()
        if not self._is_there.acquire(timeout=seconds):
            gaps.append(
                f"{_name_of(self._source)} did not tell within {self._question.seconds:g} s: it "
                "waits for a lock of this process"
            )
            return []
        if self._error:
            gaps.append(f"{_name_of(self._source)} could not tell: {self._error}")
        return list(self._told)  # type: ignore[arg-type]

    def _ask(self) -> None:
        try:
            self._told = self._source(self._question)
        except Exception as error:  # noqa: BLE001 - who asked is to hear of it
            self._error = repr(error)
        finally:
            self._is_there.release()


class _Growth:
    """How fast counters grow: looked at before, and again after a while."""

    def __init__(self, sources: Sources, question: Question) -> None:
        only_counters = Question(counters=True)
        ends_at = time.monotonic() + question.seconds
        self._system = look_at(os.getpid())
        self._before: dict[tuple[object, str], float] = {}
        self._traffic: dict[object, tuple[CallTraffic, ...]] = {}
        gaps: list[str] = []
        for worker in _from_all(sources.workers, only_counters, ends_at, gaps):
            self._keep(worker)
        for group in _from_all(sources.groups, only_counters, ends_at, gaps):
            self._keep(group)
        self._began_at = time.monotonic()
        threading.Event().wait(question.rate_seconds)

    def _keep(self, part: WorkerReport | GroupReport) -> None:
        key = _key_of(part)
        self._before |= {(key, each.name): each.value for each in part.counters}
        if isinstance(part, WorkerReport):
            self._traffic[key] = part.traffic

    def of(self, part: R) -> R:
        """Returns a part of the answer with the growth of its counters."""
        seconds = max(time.monotonic() - self._began_at, 1e-3)
        counters = tuple(
            replace(each, per_second=max(0.0, each.value - before) / seconds)
            if each.kind == "counter"
            and (before := self._before.get((_key_of(part), each.name))) is not None
            else each
            for each in part.counters
        )
        if isinstance(part, WorkerReport):
            known = self._traffic.get(_key_of(part))
            if known is not None:
                recent = tuple(each for each in grown(part.traffic, known) if each.count)
                part = replace(part, recent=recent, recent_seconds=seconds)
        return replace(part, counters=counters)

    def of_system(self, now: SystemReport | None) -> SystemReport | None:
        """The same of what the system tells."""
        if now is None or self._system is None:
            return now
        seconds = max(time.monotonic() - self._began_at, 1e-3)
        return replace(now, cpu_share=(now.cpu_seconds - self._system.cpu_seconds) / seconds)


def _key_of(part: WorkerReport | GroupReport) -> object:
    return (type(part).__name__, part.name, part.rank)


def _name_of(source: Callable[..., object]) -> str:
    return f"{source.__module__}.{getattr(source, '__qualname__', '')}".removeprefix("lockstitch.")


def _with_served(
    threads: Sequence[ThreadReport], workers: Sequence[WorkerReport]
) -> tuple[ThreadReport, ...]:
    """The threads, those that run a function for another worker marked as such."""
    served = {each.thread: each.function for worker in workers for each in worker.serving}
    return tuple(
        replace(thread, kind="serving", serves=served[thread.ident])
        if thread.ident in served
        else thread
        for thread in threads
    )
