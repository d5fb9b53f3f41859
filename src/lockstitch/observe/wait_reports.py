"""What every worker waits for, told by one call or one signal: the way out of "it hangs".

    print(lockstitch.explain_waits())          kill -USR1 PID

Questions and answers are control messages, handled by the threads that read, so they get through
where every other thread of a worker is blocked. A worker that does not answer is named.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lockstitch.attach.presence import PRESENCE
from lockstitch.attach.values import OtherWait, Question, WorkerReport
from lockstitch.errors import LockstitchError, ProtocolError
from lockstitch.ids import IdSource, WorkerId
from lockstitch.inquiry import INQUIRY
from lockstitch.link.codec import Codec
from lockstitch.observe.participants import function_in_words
from lockstitch.observe.text import waits_in_words, where_served
from lockstitch.runtime.reports import (
    begin_to_report,
    report_worker,
    what_is_called,
)
from lockstitch.runtime.worker import PROCESS, Worker, current_worker, has_current_worker
from lockstitch.wire.messages import AskWaits, TellWaits

if TYPE_CHECKING:
    from lockstitch.ids import GlobalId
    from lockstitch.runtime.pending import Pending

_CALLEE_SECONDS: Final = 0.25
_REPORTS: Final = Codec(WorkerReport, complaint="this tells of no worker", by_name=True)


class _Question:
    """One question to several workers, and what has been answered so far."""

    def __init__(self, asked: dict[WorkerId, str]) -> None:
        self._lock = threading.Lock()
        self._asked = asked
        self.answers: list[WorkerReport] = []
        self.complete = threading.Event()

    def answer(self, worker: WorkerId, report: WorkerReport) -> None:
        with self._lock:
            if self._asked.pop(worker, None) is not None:
                self.answers.append(report)
            if not self._asked:
                self.complete.set()

    def silent(self) -> list[str]:
        with self._lock:
            return sorted(self._asked.values())


class WaitReports:
    """A service of the worker that asks others what they wait for, and answers them. Plugged into
    every worker by `init_rpc`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._ids = IdSource(worker.id)
        self._questions: dict[GlobalId, _Question] = {}
        worker.agent.handle(AskWaits, self._tell)
        worker.agent.handle(TellWaits, self._note)
        worker.agent.answers.explain_timeout = self._explain_timeout

    def ask(self, timeout_seconds: float = 2.0) -> tuple[list[WorkerReport], list[str]]:
        """Returns what each worker waits for, by rank, and the names of those that did not
        answer."""
        agent = self._worker.agent
        others = {info.worker: info.name for info in agent.members() if info.worker != agent.id}
        identifier, question = self._ids(), _Question(others.copy())
        self._questions[identifier] = question
        try:
            for worker in others:
                with contextlib.suppress(LockstitchError):  # then it counts as silent
                    agent.send(worker, AskWaits(identifier))
            if others:
                with agent.blocked():
                    question.complete.wait(timeout_seconds)
        finally:
            del self._questions[identifier]
        answers = sorted([look(self._worker), *question.answers], key=lambda each: each.rank)
        return answers, question.silent()

    def _explain_timeout(self, callee: WorkerId, pending: Pending) -> str:
        """Says what a worker does with a request whose time is over."""
        agent = self._worker.agent
        channel = agent.peers.status(callee)
        # Not where it takes nothing in: who waits for room there would wait once more.
        if channel is None or channel.is_behind or callee == agent.id:
            return ""
        identifier, question = self._ids(), _Question({callee: channel.peer.name})
        self._questions[identifier] = question
        try:
            with contextlib.suppress(LockstitchError, ConnectionError):
                channel.post(AskWaits(identifier), lambda: _CALLEE_SECONDS)
                with agent.blocked():
                    question.complete.wait(_CALLEE_SECONDS)
        finally:
            del self._questions[identifier]
        if not question.answers:
            return f"nor does it say within {_CALLEE_SECONDS:g} s what it does"
        function = what_is_called(pending, inspect.currentframe())
        return _what_becomes_of(
            function_in_words(function), self._worker.name, pending.number, question.answers[0]
        )

    def _tell(self, sender: WorkerId, message: AskWaits) -> None:
        def tell() -> None:
            report = _REPORTS.encode(look(self._worker))
            self._worker.agent.send(sender, TellWaits(message.question, report))

        self._worker.agent.spawn(tell)

    def _note(self, sender: WorkerId, message: TellWaits) -> None:
        question = self._questions.get(message.question)
        if question is not None:
            with contextlib.suppress(ProtocolError):  # then it has not answered
                question.answer(sender, _REPORTS.decode(message.report))


def look(worker: Worker) -> WorkerReport:
    """Returns what a worker waits for at this moment, and its process besides."""
    report = report_worker(worker, Question(waits=True), sys._current_frames())
    # A process has one worker of its own; those that tests have in it wait for nothing else.
    beside = INQUIRY.lines() if worker is PROCESS.worker else None
    return replace(report, waits=(*report.waits, *map(OtherWait, beside or ())))


def _what_becomes_of(function: str, caller: str, number: int, callee: WorkerReport) -> str:
    """What a callee does with the call of that number, which is one of `function`."""
    for each in callee.serving:
        if each.is_of(caller, number):
            return f"it has been running {function} for {each.seconds:.1f} s: {where_served(each)}"
    if callee.serving:
        count = sum(each.count for each in callee.serving)
        oldest = max(callee.serving, key=lambda each: each.seconds)
        return (
            f"it does not run {function} now; it serves {count} others, "
            f"{function_in_words(oldest.function)} since {oldest.seconds:.1f} s: "
            f"{where_served(oldest)}"
        )
    return f"it does not run {function} now: the answer was lost, or is on its way"


def explain_waits(timeout_seconds: float = 2.0) -> str:
    """Says what every worker waits for: calls, functions being run, references, backward passes,
    reductions. For each worker a line with its name, and one for each thing that it waits for.

    Workers get `timeout_seconds` to answer (2); those that do not are named. A rank of `hvd` that
    is no worker tells for itself alone: of its reductions, and which ranks have not submitted them.
    Raises `NotInitializedError` before `init_rpc` or `hvd.init`.
    """
    if not has_current_worker() and INQUIRY.lines() is not None:
        return INQUIRY.explain_alone()
    answers, silent = current_worker().service(WaitReports).ask(timeout_seconds)
    lines: list[str] = []
    for report in answers:
        found = list(waits_in_words(report))
        lines += [f"{report.name}: {'waits' if found else 'waits for nothing'}", *found]
    lines += [f"{name}: did not answer within {timeout_seconds} s" for name in silent]
    return "\n".join(lines)


def listen() -> None:
    """Has SIGUSR1 make this process print what every worker waits for, and lets commands find it
    if it is a worker."""
    INQUIRY.explain = _explain
    INQUIRY.install()
    begin_to_report()
    PRESENCE.show_if_launched()


def _explain() -> str:
    return explain_waits() if has_current_worker() else INQUIRY.explain_alone()
