"""What the workers of this process tell somebody who looks on: calls, what they serve, counts.

Which thread waits for which answer is noted nowhere, since it would cost each call something: it is
read off the stacks when somebody asks.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from lockstitch.attach.recorder import RECORDER
from lockstitch.attach.sources import SOURCES
from lockstitch.attach.threads import SourceFolders, frames_of, served_line
from lockstitch.attach.values import (
    Counter,
    OtherWait,
    PendingCall,
    ServedCall,
    WorkerReport,
)
from lockstitch.interrupts import OWN_ERRORS_IGNORED
from lockstitch.runtime.functions import as_called, name_of
from lockstitch.runtime.outgoing import Outgoing
from lockstitch.runtime.pending import Future
from lockstitch.runtime.worker import living_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
    from types import FrameType

    from lockstitch.attach.values import ContextReport, Question
    from lockstitch.runtime.invocation import Invocation
    from lockstitch.runtime.pending import Pending
    from lockstitch.runtime.worker import Worker

_MOST_ENDS: Final = 128
C = TypeVar("C", PendingCall, ServedCall)

# Frames with a variable `pending`, for whose answer their thread waits.
_WAITING = (Outgoing._await.__code__, Future.wait.__code__)


@runtime_checkable
class Waiting(Protocol):
    """A service that waits for something of its own."""

    def waits(self) -> list[OtherWait]:
        """What it waits for; called at any time, from any thread."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A service that counts something."""

    def counters(self) -> list[Counter]:
        """What it has counted; called at any time, from any thread."""
        ...


@runtime_checkable
class Differentiating(Protocol):
    """A service that has autograd contexts."""

    def context_reports(self) -> list[ContextReport]:
        """What each of them has recorded; called at any time, from any thread."""
        ...


def report_workers(question: Question) -> list[WorkerReport]:
    """Returns what each worker of this process that was not closed tells."""
    frames = sys._current_frames() if question.waits else {}
    return [
        report_worker(worker, question, frames)
        for worker in sorted(living_workers(), key=lambda each: each.id)
    ]


def report_worker(
    worker: Worker, question: Question, frames: Mapping[int, FrameType]
) -> WorkerReport:
    """Returns what one worker tells. `frames`: the innermost of each thread."""
    services = worker.services()
    return WorkerReport(
        name=worker.name,
        rank=worker.id.rank,
        calls=_calls(worker, frames) if question.waits else (),
        serving=_serving(worker, frames) if question.waits else (),
        backlog=worker.agent.thread_pool.backlog,
        waits=tuple(
            wait
            for service in services
            if question.waits and isinstance(service, Waiting)
            for wait in service.waits()
        ),
        counters=_counters(worker, services) if question.counters else (),
        contexts=tuple(
            context
            for service in services
            if question.contexts and isinstance(service, Differentiating)
            for context in service.context_reports()
        ),
        traffic=RECORDER.counted(worker.name) if question.counters else (),
    )


def _threads_that_wait(frames: Mapping[int, FrameType]) -> dict[int, int]:
    """Returns which threads wait for an answer, by the `id` of its `Pending`."""
    waiting = {}
    for thread, innermost in frames.items():
        for frame in frames_of(innermost):
            if frame.f_code in _WAITING:
                waiting[id(frame.f_locals.get("pending"))] = thread
                break
    return waiting


def names_of_workers() -> list[str]:
    """Returns the names of the workers of this process."""
    return [each.name for each in sorted(living_workers(), key=lambda each: each.id)]


def _calls(worker: Worker, frames: Mapping[int, FrameType]) -> tuple[PendingCall, ...]:
    unanswered = [
        (channel.peer.name, number, pending)
        for channel in worker.agent.peers.channels()
        for number, pending in channel.unanswered()
        if not pending.is_shared  # a thread that listens for what its service tells of
    ]
    if not unanswered:
        return ()
    now, waiting = worker.clock.now(), _threads_that_wait(frames)
    found = [
        PendingCall(
            to=name,
            function=what_is_called(pending, frames.get(waiting.get(id(pending), 0))),
            seconds=round(now - pending.since, 3),
            number=number,
            thread=waiting.get(id(pending), 0),
        )
        for name, number, pending in unanswered
    ]
    groups = _alike(found, lambda call: (call.to, call.function))
    return tuple(
        replace(oldest, count=len(alike), latest=min(each.seconds for each in alike))
        for oldest, alike in groups
    )


def _serving(worker: Worker, frames: Mapping[int, FrameType]) -> tuple[ServedCall, ...]:
    now, folders = worker.clock.now(), SourceFolders()
    served = []
    for each in worker.agent.running_requests.list():
        thread = each.thread or 0
        frame = frames.get(thread)
        stack = each.coroutine_frames() if frame is None else list(frames_of(frame))
        served.append(
            ServedCall(
                caller=each.caller_name,
                function=_what_is_served(each, stack),
                seconds=round(now - each.since, 3),
                number=each.message.request,
                thread=thread if frame is not None else 0,
                at=served_line(stack, folders) if stack else None,
            )
        )
    groups = _alike(served, lambda call: (call.caller, call.function, call.at))
    return tuple(
        replace(
            oldest,
            count=len(alike),
            latest=min(each.seconds for each in alike),
            numbers=_spans_of([each.number for each in alike]) if len(alike) > 1 else (),
        )
        for oldest, alike in groups
    )


def what_is_called(pending: Pending, innermost: FrameType | None) -> str:
    """Returns the function's name, or what one of ours does for the program, such as to call a
    method: that is read off the stack of the thread that waits, too."""
    if hasattr(pending.what, "as_called"):
        for frame in frames_of(innermost) if innermost is not None else ():
            told = frame.f_locals if frame.f_code is Outgoing.call.__code__ else {}
            if told.get("pending") is pending:
                return as_called(told["function"], told["args"], told["kwargs"])[0]
    return name_of(pending.what)


def _what_is_served(served: Invocation, stack: Sequence[FrameType]) -> str:
    """The same at the callee, of the arguments with which that function runs."""
    function: Any = served.known.function
    if hasattr(function, "as_called"):
        for frame in stack:
            if frame.f_code is function.__code__:
                with OWN_ERRORS_IGNORED:
                    names, more, keywords, told = inspect.getargvalues(frame)
                    args = (*[told[name] for name in names], *(told[more] if more else ()))
                    return as_called(function, args, told[keywords] if keywords else None)[0]
    return served.what


def _alike(calls: Sequence[C], key: Callable[[C], Hashable]) -> Iterator[tuple[C, list[C]]]:
    """Those with a thread each by itself; of the others that are alike the oldest, with all."""
    groups: dict[Hashable, list[C]] = {}
    for call in calls:
        groups.setdefault(call.thread or key(call), []).append(call)
    for alike in groups.values():
        yield max(alike, key=lambda each: each.seconds), alike


def _spans_of(numbers: Sequence[int]) -> tuple[int, ...]:
    """Numbers as pairs of a first and a last one. Of very scattered ones the last pair holds some
    that are not among them."""
    ends: list[int] = []
    for number in sorted(numbers):
        if ends and (number <= ends[-1] + 1 or len(ends) >= _MOST_ENDS):
            ends[-1] = number
        else:
            ends += (number, number)
    return tuple(ends)


def _counters(worker: Worker, services: Sequence[object]) -> tuple[Counter, ...]:
    agent, statistics = worker.agent, worker.agent.statistics()
    own = (
        Counter("lockstitch_rpc_calls_total", agent.requested, "counter"),
        Counter("lockstitch_rpc_served_total", statistics.finished, "counter"),
        Counter("lockstitch_rpc_calls_pending", statistics.outstanding),
        Counter("lockstitch_rpc_calls_serving", statistics.served),
        Counter("lockstitch_rpc_calls_queued", statistics.backlog),
        Counter("lockstitch_rpc_threads", statistics.threads),
        Counter("lockstitch_rpc_peers", len(agent.peers.channels()) - 1),
    )
    others = (
        counter
        for service in services
        if isinstance(service, Counting)
        for counter in service.counters()
    )
    return (*own, *others)


def begin_to_report() -> None:
    """Has this process's workers told of to whoever asks; harmless when repeated."""
    if report_workers not in SOURCES.workers:
        SOURCES.workers.append(report_workers)
        SOURCES.names.append(names_of_workers)
