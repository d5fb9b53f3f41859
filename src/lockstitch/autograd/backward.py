"""One backward pass, as one worker takes part in it.

A pass comes to a worker with its first message. The worker then walks its graph once and waits:
each gradient that arrives is put to its component, `decide` says what that means, and what is to be
done is returned as a *task*. So the bookkeeping is short and may happen on a thread that reads, and
the caller chooses where tasks run. Whoever conducts the pass as a whole hears of each run by a
report, which rides on the last gradient that the run emits where there is one.

One lock guards the state; it is never held while something is sent, run or walked.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from lockstitch.attach.recorder import RECORDER
from lockstitch.autograd.conductor import NOBODY
from lockstitch.autograd.decisions import Decision, decide, may_block
from lockstitch.autograd.discovery import find_reach
from lockstitch.autograd.emission import Emission, GradientComposer
from lockstitch.autograd.engine import RUNNING, ComponentRun
from lockstitch.autograd.graph import find_components
from lockstitch.autograd.listening import Sleeper
from lockstitch.autograd.narrowing import find_ends
from lockstitch.autograd.observing import note_gradients
from lockstitch.autograd.progress import Components, Phase
from lockstitch.autograd.stitch import RECEIVE_NODE
from lockstitch.autograd.termination import PassStatus
from lockstitch.errors import DistAutogradError, LockstitchError
from lockstitch.wire.messages import Gradient
from lockstitch.wire.messages import Reach as AskedReach

if TYPE_CHECKING:
    from lockstitch.autograd.conductor import Conductor, PassOptions, Task
    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.discovery import Parts, Reach
    from lockstitch.autograd.emission import Sew
    from lockstitch.autograd.graph import Entry, Gradients
    from lockstitch.autograd.progress import Progress
    from lockstitch.autograd.stitch import Receive
    from lockstitch.ids import GlobalId, WorkerId
    from lockstitch.runtime.pending import Pending
    from lockstitch.runtime.worker import Worker

_LONG_GRAPH: Final = 5_000
"""From so many nodes on, a component runs in a thread of its own. That takes a tenth less time than
in the thread that made the graph: glibc gives each thread an arena of its own, and what the forward
pass left in one stands in the way of the many small blocks of the backward pass."""


class BackwardPass:
    """One worker's part of one backward pass. A `Task` that a method returns may be run by any
    thread, at once or later."""

    # Many passes never get other values, and then these cost nothing.
    _roots: Entry | None = None
    _components: Components | None = None
    _parts: Parts | None = None
    _has_asked = False
    _failure: BaseException | None = None
    _sent = 0
    received = 0
    """How many gradients have come so far."""

    def __init__(
        self,
        worker: Worker,
        context: DistAutogradContext,
        options: PassOptions,
        conductor: Conductor,
        sew: Sew,
    ) -> None:
        self.options = options
        self._composer = GradientComposer(context, options, sew)
        self._worker = worker
        self._messaging = worker.agent
        self._context = context
        self._conductor = conductor
        self._lock = threading.Lock()
        self._sleepers: list[Pending] = []
        self._walking = threading.Lock()
        self._entries: list[Entry] | None = None
        self._settled: set[GlobalId | None] = set()
        """The stitches for which gradients, or null tokens, have come."""
        self._inbox: list[Gradient] = []
        self._selection = context.selection_of(options.id) if options.selects else None
        """What the pass wants here; None: all leaves."""
        self._wanted: Parts | None = None
        """In a pass that selects: which of the tensors received here lead to something chosen."""

    # ------------------------------------------------------------ what comes in

    def begin(self, roots: Entry, gradients: Gradients) -> Task | None:
        """Starts the pass, on its initiator, from the loss; called by the thread that is to run
        what it returns."""
        self._roots = roots
        self._walk()
        with self._lock:
            if self._failure is not None:  # meanwhile; the initiator knows of what
                self._roots = None
                return None
            assert self._components is not None
            progress = self._components.get(None)
            assert progress is not None
            progress.settle_roots(gradients)
            return self._decide(progress, is_callers_thread=True)

    def receive(self, message: Gradient) -> Task | None:
        """A gradient, or a null token, has come back for tensors that were sent from here."""
        with self._lock:
            if self._failure is not None:
                return None
            self.received += 1
            if self._components is not None:
                return self._place(message)
            self._inbox.append(message)
            return self._open_inbox if len(self._inbox) == 1 else None

    def answer_by_reply_push(self, worker: WorkerId) -> None:
        """That worker listens on the connection on which it calls this one."""
        self._conductor.answer_by_reply_push(worker)

    def learn_parts(self, parts: Parts, wanted: Parts | None = None) -> list[Task]:
        """The initiator's answer: which of the tensors sent from here take part, and in a pass that
        selects, which of those received."""
        with self._lock:
            if self._failure is not None or self._parts is not None:
                return []
            self._parts = parts
            self._wanted = None if self._selection is None else wanted
            self._narrow(self._components)
            self._wake_waiting()
            decided = [
                (each, self._decide(each))
                for each in self._components or ()
                if each.phase is Phase.WAITING
                and (each.has_begun or may_block(each.component, parts, self.options.fast))
            ]
        tasks = []
        for progress, task in decided:
            if task is not None and progress.has_roots:
                task()  # which hands them over
            elif task is not None:
                tasks.append(task)
        return tasks

    def find_reach(self) -> Reach:
        """The answer to the initiator's question."""
        with self._walking:
            entries = self._find_entries()
        edges = () if self._selection is None else self._selection.edges
        chosen = {(edge.node, edge.output_nr) for edge in edges}
        return find_reach(entries, RECEIVE_NODE, chosen)

    def tell_reach(self) -> None:
        """Sends that answer to the initiator, and then walks: while that one puts the answers
        together there is nothing else to do."""
        try:
            reach = self.find_reach()
            with contextlib.suppress(LockstitchError):  # if the initiator is gone, so is the pass
                self._conductor.send(
                    self.options.initiator, AskedReach(self._context.id, self.options.id, *reach)
                )
            tasks = self._walk()
        except Exception as error:  # noqa: BLE001 - raised by `backward`, on the initiator
            self.abandon(error)
            return
        for task in tasks:
            self._messaging.spawn(task)

    @property
    def has_exchanged(self) -> bool:
        """Whether this worker has sent or received gradients in this pass."""
        return bool(self._sent or self.received)

    def status(self) -> PassStatus:
        """Where this worker stands; see `termination`."""
        with self._lock:
            components = tuple(self._components or ())
            return PassStatus(
                self._sent,
                self.received,
                bool(self._inbox) or any(progress.is_busy for progress in components),
                tuple(message for progress in components for message in progress.missing()),
            )

    def arrived(self) -> list[GlobalId]:
        """For which stitches gradients, or word that there are none, have come."""
        with self._lock:
            return [each for each in self._settled if each is not None]

    def fail(self, error: BaseException, *, may_be_over: bool = False) -> bool:
        """Frees whatever waits; what comes from now on is ignored. False: it had ended before.
        `may_be_over`: if nothing waits, that is no failure."""
        with self._lock:
            if self._failure is not None:
                return False
            self._failure = error
            conductor, failed = self._conductor, not may_be_over or self._is_under_way()
            self._components = Components((), self._settled)
            self._inbox.clear()
            self._entries = []
            self._roots = None
            self._conductor = NOBODY  # the initiator holds us: together we would be garbage
            self._wake_waiting()
        conductor.end(failed)
        return True

    def _is_under_way(self) -> bool:
        components = self._components or ()
        return any(each.has_begun and each.phase is not Phase.DONE for each in components)

    # ------------------------------------------------------------ the walk

    def _open_inbox(self) -> None:
        """The task of a pass's first gradient: walks, then goes on with all that came meanwhile."""
        try:
            tasks = self._walk()
        except Exception as error:  # noqa: BLE001 - raised by `backward`, on the initiator
            self.abandon(error)
            return
        for task in tasks[1:]:
            self._messaging.spawn(task)
        if tasks:
            tasks[0]()

    def _walk(self) -> list[Task]:
        with self._walking:
            if self._components is not None:
                return []
            components = Components(
                find_components(self._find_entries(), RECEIVE_NODE), self._settled
            )
            with self._lock:
                if self._failure is not None:
                    return []
                self._components = components
                self._narrow(components)
                inbox, self._inbox = self._inbox, []
                tasks = [self._place(message) for message in inbox]
        return [task for task in tasks if task is not None]

    def _find_entries(self) -> list[Entry]:
        """Where gradients may enter: once for the whole pass, whatever is sent meanwhile. Who calls
        it is `_walking`."""
        entries = self._entries
        if entries is None:
            entries = [] if self._roots is None else [self._roots]
            entries.extend([send.entry() for send in reversed(self._context.sends)])
            with self._lock:
                if self._failure is not None:
                    return []
                self._entries = entries
        return entries

    # ------------------------------------------------------------ deciding (the lock is held)

    def _narrow(self, components: Components | None) -> None:
        """Once it is known what a pass that selects needs of them."""
        if self._selection is None or components is None:
            return
        if self._parts is not None or self.options.fast:
            components.narrow(self._selection, self._wanted)

    def _place(self, message: Gradient) -> Task | None:
        assert self._components is not None
        progress = self._components.get(message.message)
        if progress is None:
            return self._take_unexpected(message)
        if message.message in self._settled:
            return None  # repeated
        progress.settle(message)
        if progress.phase is Phase.WAITING:
            return self._decide(progress)
        if progress.phase is Phase.RUNNING:
            self._wake_waiting()
            return None
        return partial(self._report, progress)

    def _take_unexpected(self, message: Gradient) -> Task:
        """What has come for no tensor that was sent before the walk. A checkpoint that runs a call
        once more, in the pass, sends its arguments again, and no gradient comes back for these: but
        word of that does, where they meet others' in one component."""
        stitch = message.message
        if not message.body.items and any(send.message == stitch for send in self._context.sends):
            told = (*message.consumed, stitch)
            return partial(self._conductor.report, message.emitted, told, False)
        error = DistAutogradError(f"a gradient came for {stitch}, which was never sent")
        return partial(self.abandon, error)

    def _decide(self, progress: Progress, *, is_callers_thread: bool = False) -> Task | None:
        options = self.options
        if self._selection is not None and self._parts is None and not options.fast:
            return None  # it has been asked for them
        decision = decide(progress.component, progress.arrived, self._parts, options.fast)
        if decision is Decision.RUN or decision is Decision.BLOCK:
            if decision is Decision.BLOCK:
                assert self._components is not None
                self._components.join_to(progress, self._parts, options.fast)
            progress.phase = Phase.RUNNING
            task = progress.task = partial(self._run, progress, decision is Decision.BLOCK)
            if progress.has_roots:
                progress.task = partial(self._conductor.hand_over, task)
                return task if is_callers_thread else progress.task
            if progress.component.size >= _LONG_GRAPH:
                progress.task = partial(self._run_in_its_own_thread, task)
            elif decision is Decision.BLOCK:  # not in a thread for which others may wait
                progress.task = partial(self._messaging.spawn, task)
            return progress.task
        if decision is Decision.IDLE:
            progress.phase = Phase.DONE
            return partial(self._report, progress)
        if decision is Decision.ASK and not self._has_asked:
            self._has_asked = True
            return self._conductor.need_parts
        return None

    # ------------------------------------------------------------ running

    def _run(self, progress: Progress, blocking: bool) -> None:
        assert progress.task is not None
        context, component = self._context, progress.component
        if not context.runs.enter(self, progress.task):
            return  # until the last run of an earlier pass has ended
        is_distant = self._conductor.is_distant
        options = self.options
        emission = Emission(component, self._post_now, is_distant and not blocking)
        outer, RUNNING.context = RUNNING.context, context
        begun = RECORDER.begin()
        try:
            try:
                run = ComponentRun(
                    component,
                    self._selection or context,
                    options.retain_graph,
                    emission,
                    options.create_graph,
                    None
                    if blocking or self._wanted is None
                    else find_ends(component, self._wanted),
                    progress.unwanted,
                )
                if blocking:
                    self._conductor.begin_to_wait()
                    run.run_blocking(*self._take_awaited(progress), partial(self._wait, progress))
                    self._conductor.end_wait()
                else:
                    run.run(self._take(progress))
                if is_distant and context.has_replicas and not options.selects:
                    with self._messaging.blocked():
                        context.reduce_replicas()
            finally:
                for task in context.runs.leave():
                    self._messaging.spawn(task)
            self._conclude(progress, emission)
            if begun:
                size = f"component of {component.size} nodes"
                RECORDER.end(begun, "backward", f"backward of a {size}", self._worker.name)
        except BaseException as error:  # noqa: BLE001 - raised by `backward`, on the initiator
            self.abandon(error)
        finally:
            RUNNING.context = outer

    def _run_in_its_own_thread(self, task: Task) -> None:
        def run() -> None:
            with self._worker.active():
                task()

        name = f"{self._worker.name}-backward"
        threading.Thread(target=run, name=name, daemon=True).start()

    def _take(self, progress: Progress) -> dict[GlobalId | None, Gradients | None]:
        with self._lock:
            self._raise_failure()
            arrived, progress.arrived = progress.arrived, {}
            return arrived

    def _take_awaited(
        self, progress: Progress
    ) -> tuple[dict[GlobalId | None, Gradients | None], list[tuple[Entry, list[int]]]]:
        with self._lock:
            self._raise_failure()
            awaited = progress.awaited(self._parts)
            arrived, progress.arrived = progress.arrived, {}
            return arrived, awaited

    def _wait(self, progress: Progress, entry: Entry) -> Gradients | None:
        """Blocks until it is known what comes for `entry`: gradients, or none."""
        progress.waits_for = entry
        while (sleeper := self._fall_asleep(entry)) is not None:
            if not self._conductor.sleep(sleeper, knows_parts=self._parts is not None):
                self._conductor.waited_too_long()
        progress.waits_for = None
        with self._lock:
            self._raise_failure()
            return progress.arrived.get(entry.message)

    def _fall_asleep(self, entry: Entry) -> Pending | None:
        """Returns what will be finished when something changes; None once `entry` is settled."""
        with self._lock:
            if self._failure is not None or entry.message in self._settled:
                return None
            if self._parts is not None and entry.message not in self._parts:
                return None
            sleeper = Sleeper()
            self._sleepers.append(sleeper)
            return sleeper

    def _wake_waiting(self) -> None:
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            sleeper.finish(None, None)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise DistAutogradError("the backward pass has ended") from self._failure

    def _conclude(self, progress: Progress, emission: Emission) -> None:
        """The run is over and its leaves are stored: reports it."""
        outgoing = emission.remaining()
        with self._lock:
            if self._failure is not None:
                return
            progress.phase = Phase.DONE
            progress.task = None  # it holds the progress
            progress.emitted += emission.emitted
            for receive, _ in outgoing:
                progress.emitted.append(receive.message)
            emitted, consumed = progress.take_report()
            self._sent += len(outgoing)
        last = outgoing.pop() if outgoing and self._conductor.is_distant else None
        for receive, gradients in outgoing:
            self._post_gradient(receive, gradients)
        if last is None:
            self._conductor.report(emitted, consumed, progress.has_roots)
        else:
            self._post_gradient(*last, emitted, consumed)

    def _report(self, progress: Progress) -> None:
        """Reports what came for a component after it had run, or that does not run at all."""
        with self._lock:
            emitted, consumed = progress.take_report()
            progress.arrived.clear()
        if emitted or consumed:
            self._conductor.report(emitted, consumed, False)

    def abandon(self, error: BaseException) -> None:
        """The pass cannot go on here: frees what waits, and tells the initiator."""
        conductor = self._conductor
        if self.fail(error):
            conductor.fail(error)

    # ------------------------------------------------------------ what goes out

    def _post_now(self, receive: Receive, gradients: Gradients | None) -> None:
        """Sends gradients in the middle of a run."""
        with self._lock:
            self._sent += 1
        self._post_gradient(receive, gradients)

    def _post_gradient(
        self,
        receive: Receive,
        gradients: Gradients | None,
        emitted: tuple[GlobalId, ...] = (),
        consumed: tuple[GlobalId, ...] = (),
    ) -> None:
        begun = RECORDER.begin()
        conductor, worker = self._conductor, receive.message.worker
        report = emitted, consumed
        listens = conductor.listens_to(worker)
        conductor.send(worker, self._composer.compose(receive, gradients, report, listens))
        if begun:
            me = self._worker.name
            note_gradients(begun, "gradient sent", me, receive.message, gradients or ())
