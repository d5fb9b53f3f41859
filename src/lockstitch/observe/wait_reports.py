"""What every worker waits for, told by one call or one signal: the way out of "it hangs".

    print(lockstitch.explain_waits())          kill -USR1 PID

Questions and answers are control messages, handled by the threads that read, so they get through
where every other thread of a worker is blocked. A worker that does not answer is named.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from lockstitch.attach.presence import PRESENCE
from lockstitch.errors import LockstitchError
from lockstitch.ids import IdSource, WorkerId
from lockstitch.inquiry import INQUIRY
from lockstitch.observe.text import ages_in_words, grouped
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.reports import begin_to_report
from lockstitch.runtime.waits import WorkerWaits, look
from lockstitch.runtime.worker import Worker, current_worker, has_current_worker
from lockstitch.wire.messages import AskWaits, TellWaits

if TYPE_CHECKING:
    from lockstitch.ids import GlobalId
    from lockstitch.runtime.pending import Pending

_CALLEE_SECONDS: Final = 0.25


class _Question:
    """One question to several workers, and what has been answered so far."""

    def __init__(self, asked: dict[WorkerId, str]) -> None:
        self._lock = threading.Lock()
        self._asked = asked
        self.answers: list[WorkerWaits] = []
        self.complete = threading.Event()

    def answer(self, worker: WorkerId, waits: WorkerWaits) -> None:
        with self._lock:
            if self._asked.pop(worker, None) is not None:
                self.answers.append(waits)
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

    def ask(self, timeout_seconds: float = 2.0) -> tuple[list[WorkerWaits], list[str]]:
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
        ranks = {info.name: info.id for info in agent.members()}
        answers = sorted(
            [look(self._worker), *question.answers], key=lambda each: ranks.get(each.name, -1)
        )
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
        return _what_becomes_of(name_of(pending.what), self._worker.name, question.answers[0])

    def _tell(self, sender: WorkerId, message: AskWaits) -> None:
        def tell() -> None:
            waits = look(self._worker)
            self._worker.agent.send(
                sender,
                TellWaits(message.question, waits.name, waits.calls, waits.serving, waits.others),
            )

        self._worker.agent.spawn(tell)

    def _note(self, sender: WorkerId, message: TellWaits) -> None:
        question = self._questions.get(message.question)
        if question is not None:
            question.answer(
                sender, WorkerWaits(message.name, message.calls, message.serving, message.others)
            )


def _what_becomes_of(function: str, caller: str, callee: WorkerWaits) -> str:
    """What a callee does with a call of that function."""
    its = [each for each in callee.serving if each[:2] == (caller, function)]
    if its:
        _caller, _function, seconds, where = max(its, key=lambda each: each[2])
        return f"it has been running {function} for {seconds:.1f} s: {where}"
    if callee.serving:
        _caller, other, seconds, where = max(callee.serving, key=lambda each: each[2])
        return (
            f"it does not run {function} now; it serves {len(callee.serving)} others, {other} "
            f"since {seconds:.1f} s: {where}"
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
    for waits in answers:
        lines.append(f"{waits.name}: {'waits' if waits else 'waits for nothing'}")
        lines += [
            f"  called {function} on {to}, {ages_in_words(ages, len(ages))} ago: no answer yet"
            for (to, function), ages in grouped(
                ((to, function), seconds) for to, function, seconds in waits.calls
            )
        ]
        lines += [
            f"  serves {function} for {caller}, since {ages_in_words(ages, len(ages))}: {where}"
            for (caller, function, where), ages in grouped(
                ((caller, function, where), seconds)
                for caller, function, seconds, where in waits.serving
            )
        ]
        lines += [f"  {line}" for line in waits.others]
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
