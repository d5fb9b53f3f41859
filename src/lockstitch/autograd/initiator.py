"""The initiator of a backward pass: starts it, answers who takes part, and sees its end.

It waits on the thread that called `backward`, and that thread runs the loss's roots. Everything
else comes by messages: reports, until all balances are zero; questions which stitches take part;
and failures, the first of which ends the pass on all workers.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from lockstitch.autograd.backward import BackwardPass
from lockstitch.autograd.conductor import LONG_WAIT_SECONDS, Conductor
from lockstitch.autograd.discovery import Closure
from lockstitch.autograd.listening import Listening, Sleeper
from lockstitch.autograd.termination import Balance, StandstillDetector
from lockstitch.errors import (
    ConnectionLostError,
    DistAutogradError,
    LockstitchError,
    PeerDiedError,
    copy_of,
    text_of,
)
from lockstitch.wire.messages import Abort, AskPassStatus, AskReach, Parts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.autograd.conductor import PassOptions, Task
    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.discovery import Parts as TensorParts
    from lockstitch.autograd.discovery import Reach
    from lockstitch.autograd.emission import Sew
    from lockstitch.autograd.graph import Entry, Gradients
    from lockstitch.autograd.termination import PassStatus
    from lockstitch.ids import GlobalId, WorkerId
    from lockstitch.runtime.pending import Pending
    from lockstitch.runtime.worker import Worker
    from lockstitch.wire.messages import Message

# How long a fast pass may be silent before its initiator asks whether it is stuck; doubled after
# each question, up to the greatest.
_SILENCE_SECONDS = 0.1
_LONGEST_SILENCE_SECONDS = 2.0


class Initiator(Conductor):
    """The conductor of one pass (see `conductor.Conductor`), where `backward` was called."""

    # Most passes never get other values, and then these cost nothing.
    _sleeper: Pending | None = None
    _reader: int | None = None
    """The thread that called `backward`, while it waits for tasks."""
    _progress = 0
    _roots_ran = False
    _error: BaseException | None = None
    _needs_parts = False
    _closure: Closure | None = None
    _silence = _SILENCE_SECONDS
    roots_ask = False
    """Whether the roots could not run before it was known who takes part."""

    def __init__(
        self,
        worker: Worker,
        context: DistAutogradContext,
        options: PassOptions,
        sew: Sew,
        *,
        asks_first: bool = False,
    ) -> None:
        self._worker = worker
        self._messaging = worker.agent
        self.context = context
        self.options = options
        self.asks_first = (asks_first or options.selects) and not options.fast
        """Whether somebody will need to know who takes part: then the others look at their graphs
        while this worker walks its own."""
        self._lock = threading.Lock()
        self._listening = Listening(self._messaging)
        self._tasks: deque[Task] = deque()
        self._balance = Balance()
        self._asked: set[WorkerId] = set()
        self._listeners: set[WorkerId] = set()
        self._unreachable: dict[WorkerId, LockstitchError] = {}
        self._standstill = StandstillDetector()
        self.backward_pass = BackwardPass(worker, context, options, self, sew)

    def describe(self) -> str:
        """Returns what the pass waits for."""
        works_here = self._works_here()
        with self._lock:
            if not self._roots_ran:
                return "the graph of its roots runs"
            if works_here:
                return "gradients are being worked on here"
            return f"on their way or being worked on: {self._balance!r}"

    def working_ranks(self) -> list[int]:
        """Returns the ranks to which gradients are on their way, or which work on some. What led to
        those that are worked on here is reported when that is done: meanwhile this waits for none.
        """
        if self._works_here():
            return []
        with self._lock:
            return self._balance.owners()

    def _works_here(self) -> bool:
        return self.backward_pass.status().is_active

    def involves(self, worker: WorkerId) -> bool:
        """Returns whether something of this pass may come from `worker`, or go there."""
        return worker in self.context.workers or worker in self._asked

    # ------------------------------------------------------------ on the thread that called

    def run(self, roots: Entry, gradients: Gradients) -> None:
        """Runs the pass; returns when it is finished on all workers, or raises its first error."""
        try:
            if self.asks_first:
                self._begin_to_ask()
            task = self.backward_pass.begin(roots, gradients)
            self.roots_ask = task == self.need_parts
            if self.asks_first:
                self._ask_own_part()
            while task is not None or (task := self._next_task()) is not None:
                task()
                task = None
        except BaseException as error:
            self.fail(error)  # Ctrl-C, or a bug
            self._end()
            raise
        self._end()
        if self._error is not None:
            raise copy_of(self._error)

    def _end(self) -> None:
        self.context.has_derivatives |= self.options.create_graph
        self.backward_pass.fail(DistAutogradError("the backward pass has ended"))
        self._listening.end(failed=self._error is not None)
        if self._error is not None:
            self.context.failed_passes += 1
            self._tell(self.context.workers | self._asked, Abort(self.context.id, self.options.id))

    def _next_task(self) -> Task | None:
        """Waits for something to do on this thread; None when the pass has ended."""
        while True:
            with self._lock:
                if self._tasks:
                    return self._tasks.popleft()
                if self._is_over():
                    return None
                timeout = (
                    self.long_wait_seconds() if self._needs_parts or self.options.fast else None
                )
                progress = self._progress, self.backward_pass.received
                sleeper = self._sleeper = Sleeper()
            if self._sleep(sleeper, timeout):
                continue
            if progress == (self._progress, self.backward_pass.received):
                return self.waited_too_long

    def _sleep(self, sleeper: Pending, timeout: float | None) -> bool:
        self._reader = threading.get_ident()
        try:
            return self._listening.sleep(sleeper, timeout)
        except LockstitchError as error:
            self.fail(error)
            return True
        finally:
            self._reader = None

    def _rouse(self) -> None:
        sleeper = self._sleeper
        if sleeper is not None:
            sleeper.finish(None, None)

    def offer(self, task: Task) -> None:
        """Has a task of this pass done: by the thread that called `backward`, if that has itself
        read what led to it, else by the thread pool."""
        if self._reader == threading.get_ident():
            self._tasks.append(task)
            self._rouse()
        else:
            self._messaging.spawn(task)

    def _is_over(self) -> bool:
        return self._error is not None or (self._roots_ran and self._balance.is_zero)

    # ------------------------------------------------------------ as the conductor

    def report(
        self, emitted: tuple[GlobalId, ...], consumed: tuple[GlobalId, ...], roots_ran: bool = False
    ) -> None:
        """See `termination`."""
        with self._lock:
            self._progress += 1
            self._balance.add(emitted, consumed)
            self._roots_ran = self._roots_ran or roots_ran
            if self._is_over():
                self._rouse()

    def need_parts(self) -> None:
        """Notes that a component here waits to know who takes part. The caller's thread asks when
        no more gradients come in: at once, where none is under way."""
        if not self.backward_pass.has_exchanged:
            self._ask_reach()
        with self._lock:
            self._needs_parts = True
            self._progress += 1
            self._rouse()

    def long_wait_seconds(self) -> float | None:
        """Returns how long its waiting threads wait before they call `waited_too_long`; None: for
        ever."""
        if self.options.fast:
            return self._silence
        return LONG_WAIT_SECONDS if self._closure is None else None

    def sleep(self, sleeper: Pending, *, knows_parts: bool) -> bool:  # noqa: ARG002
        return self._listening.sleep(sleeper, self.long_wait_seconds())

    def listens_to(self, worker: WorkerId) -> bool:
        return self._listening.begin(worker)

    def send(self, worker: WorkerId, message: Message) -> None:
        if worker in self._listeners:
            self._messaging.send_back(worker, message)
        else:
            self._messaging.send(worker, message)

    def answer_by_reply_push(self, worker: WorkerId) -> None:
        self._listeners.add(worker)

    def waited_too_long(self) -> None:
        if self.options.fast:
            self._ask_status()
        else:
            self._ask_reach()

    def hand_over(self, task: Task) -> None:
        """The roots can run."""
        with self._lock:
            self._progress += 1
            self._tasks.append(task)
            self._rouse()

    def fail(
        self, error: BaseException, worker: WorkerId | None = None, text: str | None = None
    ) -> None:
        """The pass has failed, on `worker` (default: here). The first failure counts; `text` is
        what it says, where that is not the error's own text."""
        rank = (worker or self._worker.id).rank
        raised = _as_raised(error, rank, text_of(error) if text is None else text)
        with self._lock:
            if self._is_over():
                return
            self._error = raised
            self._rouse()
        self.backward_pass.fail(error)

    # ------------------------------------------------------------ who takes part

    def serve_parts(self, worker: WorkerId) -> None:
        """Another worker needs to know which stitches take part."""
        with self._lock:
            closure = self._closure
            is_known = closure is not None and closure.is_closed
            is_new = worker not in self._asked
            self._asked.add(worker)
        if is_known:
            self._send_parts([worker])
        elif closure is None:
            self._ask_reach()
        elif is_new:
            self._ask([worker])

    def _ask_reach(self) -> None:
        if self._begin_to_ask():
            self._ask_own_part()

    def _begin_to_ask(self) -> bool:
        """Asks the other workers; False: they have been asked before."""
        with self._lock:
            if self._closure is not None:
                return False
            self._closure = Closure(self._worker.id)
            self._asked |= self.context.workers | {self._worker.id}
            asked = list(self._asked)
        self._ask(asked)
        return True

    def _ask(self, workers: Iterable[WorkerId]) -> None:
        options = self.options
        others = [worker for worker in workers if worker != self._worker.id]
        listens = len(others) == 1 and self._listening.begin(others[0])
        self._tell(others, AskReach(self.context.id, options.id, options.flags, listens))
        self._fail_if_unreachable()

    def _ask_own_part(self) -> None:
        try:
            reach = self.backward_pass.find_reach()
        except Exception as error:  # noqa: BLE001 - raised by `backward`
            self.fail(error)
        else:
            self.take_reach(self._worker.id, reach)

    def take_reach(self, worker: WorkerId, reach: Reach) -> None:
        """A worker's answer. Closes the set as far as possible, and tells all when it is closed."""
        with self._lock:
            closure = self._closure
            if closure is None or closure.is_closed:
                return
            is_closed = closure.add(worker, reach)
            if is_closed and self.options.selects:
                closure.narrow()
            unasked = closure.missing - self._asked
            self._asked |= unasked
            asked = list(self._asked)
        if is_closed:
            self._send_parts(asked)
        elif unasked:
            self._ask(unasked)  # workers that this one had not heard of
        else:
            self._fail_if_unreachable()

    def _send_parts(self, workers: Iterable[WorkerId]) -> None:
        options, closure = self.options, self._closure
        assert closure is not None
        is_ours = False
        for worker in workers:
            if worker == self._worker.id:
                is_ours = True
                continue
            sent = _as_fields(closure.parts_of(worker))
            received = _as_fields(closure.received_parts_of(worker)) if options.selects else ()
            self._tell([worker], Parts(self.context.id, options.id, options.flags, sent, received))
        if is_ours:
            own = self._worker.id
            tasks = self.backward_pass.learn_parts(
                closure.parts_of(own), closure.received_parts_of(own) if options.selects else None
            )
            for task in tasks:
                self._messaging.spawn(task)

    def _fail_if_unreachable(self) -> None:
        """A dead worker matters if the set cannot be closed without it."""
        with self._lock:
            missing = set() if self._closure is None else self._closure.missing
            lost = [self._unreachable[worker] for worker in missing if worker in self._unreachable]
        if lost:
            self.fail(lost[0])

    # ------------------------------------------------------------ is a fast pass stuck?

    def _ask_status(self) -> None:
        with self._lock:
            self._silence = min(2 * self._silence, _LONGEST_SILENCE_SECONDS)
            workers = self.context.workers | {self._worker.id}
            wave = self._standstill.begin(workers)
        self._tell(workers, AskPassStatus(self.context.id, self.options.id, wave))

    def take_status(self, wave: int, worker: WorkerId, status: PassStatus) -> None:
        """Takes in a worker's answer to the question for its status."""
        with self._lock:
            waiting = self._standstill.answer(wave, worker, status)
        if waiting:
            names = ", ".join(f"number {each.counter} of rank {each.rank}" for each in waiting)
            self.fail(
                DistAutogradError(
                    "a backward pass in fast mode assumes that all tensors sent from a worker that "
                    "it reaches take part, but no gradient can come for these stitches: "
                    f"{names}. Use mode='smart'."
                )
            )

    # ------------------------------------------------------------ telling

    def _tell(self, workers: Iterable[WorkerId], message: Message) -> None:
        for worker in workers:
            try:
                self._messaging.send(worker, message)
            except LockstitchError as error:
                self._unreachable[worker] = error


def _as_fields(parts: TensorParts) -> tuple[tuple[GlobalId, tuple[int, ...]], ...]:
    return tuple([(message, tuple(sorted(indices))) for message, indices in parts.items()])


def _as_raised(error: BaseException, rank: int, text: str) -> BaseException:
    """The exception that `backward` raises for `error` of the worker `rank`."""
    ours = (PeerDiedError, ConnectionLostError, DistAutogradError)
    kind = type(error)  # `isinstance` asks the error, too, which may raise
    if not issubclass(kind, Exception) or issubclass(kind, ours):
        return error
    raised = DistAutogradError(f"Error on Node {rank}: {text}")
    raised.__cause__ = error
    return raised
