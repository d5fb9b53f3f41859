"""Distributed autograd of one worker: its contexts and passes, and the messages between workers.

The service plugs into the worker's agent: as the interceptor that stitches messages, and as the
handler of the messages of backward passes. Handlers only keep the books; what they cause to run,
they hand to the agent's threads.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from lockstitch.attach.recorder import RECORDER
from lockstitch.attach.values import Counter, OtherWait
from lockstitch.autograd import replicas
from lockstitch.autograd.backward import BackwardPass, is_run_by_this_thread
from lockstitch.autograd.conductor import PassOptions, RemoteInitiator, flags_of
from lockstitch.autograd.context import (
    context_of_this_thread,
    current_context,
    set_current_context,
)
from lockstitch.autograd.contexts import Contexts, not_found
from lockstitch.autograd.discovery import Reach
from lockstitch.autograd.initiator import Initiator
from lockstitch.autograd.observing import note_gradients
from lockstitch.autograd.releases import Releases
from lockstitch.autograd.reports import report_context
from lockstitch.autograd.roots import enter_at
from lockstitch.autograd.stitch import Stitcher
from lockstitch.autograd.termination import PassStatus
from lockstitch.errors import DistAutogradError, LockstitchError, PeerDiedError, RpcError
from lockstitch.ids import IdSource, WorkerId, context_owner
from lockstitch.modes import in_plain_modes
from lockstitch.runtime import remote_errors
from lockstitch.runtime.inherited import refuse_to_block
from lockstitch.wire import messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from torch.autograd.graph import GradientEdge

    from lockstitch.attach.values import ContextReport
    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.graph import Entry, Gradients
    from lockstitch.autograd.messaging import Participant
    from lockstitch.ids import GlobalId


class Elsewhere(Protocol):
    """The tensors of other workers whose gradients a pass wants."""

    def select(self, context: DistAutogradContext, backward_pass: GlobalId) -> None:
        """Has their owners note them for the pass, which has not begun yet."""
        ...

    def take(self, context: DistAutogradContext, backward_pass: GlobalId) -> None:
        """Asks the owners, when the pass is over, what has arrived."""
        ...


class AutogradService:
    """Distributed autograd of one worker. It is made before the worker starts."""

    def __init__(self, worker: Participant) -> None:
        self._worker = worker
        self._messaging = worker.agent
        self._contexts = Contexts(worker.id, self)
        self._initiators: dict[GlobalId, Initiator] = {}
        self._releases = Releases(worker)
        self._lock = threading.Lock()
        self._pass_ids = IdSource(worker.id)
        self._stitcher = Stitcher(worker.id, IdSource(worker.id), self._contexts.join, self)
        self._messaging.interceptor = self._stitcher
        handle = self._messaging.handle
        handle(messages.ReleaseContext, self._on_release)
        handle(messages.ContextReleased, self._on_released)
        handle(messages.Gradient, self._on_gradient)
        handle(messages.Report, self._on_report)
        handle(messages.NeedParts, self._on_need_parts)
        handle(messages.AskReach, self._on_ask_reach)
        handle(messages.Reach, self._on_reach)
        handle(messages.Parts, self._on_parts)
        handle(messages.BackwardFailed, self._on_failed)
        handle(messages.Abort, self._on_abort)
        handle(messages.AskPassStatus, self._on_ask_status)
        handle(messages.PassStatus, self._on_status)
        self._messaging.on_peer_lost(self._on_peer_lost)
        self._messaging.on_connection_lost(self._fail_passes)
        self._messaging.add_concern(self._involved)
        self._messaging.on_close(self._on_close)
        replicas.observe(context_of_this_thread)

    def __repr__(self) -> str:
        return (
            f"<AutogradService of {self._worker.name!r} · {len(self._contexts)} contexts · "
            f"{self.running_passes} passes running>"
        )

    @property
    def contexts(self) -> list[DistAutogradContext]:
        """The contexts that are alive on this worker."""
        return self._contexts.alive()

    def _involved(self) -> set[WorkerId]:
        """The other workers of all contexts: when one is gone, what is kept for it may go too."""
        contexts = self.contexts
        return {context_owner(each.id) for each in contexts}.union(
            *(each.workers for each in contexts)
        )

    @property
    def running_passes(self) -> int:
        """How many backward passes are conducted or being run by this worker now."""
        with self._lock:
            conducted = {initiator.context.id for initiator in self._initiators.values()}
        return len(conducted | {each.id for each in self.contexts if each.runs.is_occupied})

    def waits(self) -> list[OtherWait]:
        """Each backward pass and each gradient that is waited for here."""
        with self._lock:
            initiators = list(self._initiators.values())
        waits = [
            OtherWait(f"backward of context {each.context.id}: {each.describe()}")
            for each in initiators
        ]
        for context in self.contexts:
            missing = {
                message
                for backward_pass in list(context.passes.values())
                for message in backward_pass.status().waiting
            }
            waits.extend(
                OtherWait(
                    f"context {context.id}: gradients of what {send.destination} was sent "
                    f"(stitch {send.message.counter} of rank {send.message.rank})",
                    ranks=(send.destination.rank,),
                )
                for send in context.sends
                if send.message in missing
            )
        return waits

    def counters(self) -> list[Counter]:
        """What is counted here, for who looks on."""
        return [
            Counter("lockstitch_autograd_contexts", len(self.contexts)),
            Counter("lockstitch_autograd_passes", self.running_passes),
        ]

    def context_reports(self) -> list[ContextReport]:
        """What each context has recorded here, for who looks on. Walks the graphs."""
        return [report_context(each) for each in self.contexts]

    # ------------------------------------------------------------ contexts

    def new_context(self) -> DistAutogradContext:
        """Opens a context and makes it the current thread's.

        Raises `RuntimeError` where the thread is inside of one already.
        """
        current = current_context(self)
        if current is not None:
            raise RuntimeError(f"Already have an autograd context id for this thread: {current.id}")
        context = self._contexts.open()
        set_current_context(context)
        return context

    def find_context(self, identifier: int) -> DistAutogradContext:
        """The context of that id. Raises `RuntimeError` where there is none, or no more."""
        return self._contexts.find(identifier)

    def current_context(self) -> DistAutogradContext:
        """The context that this thread is inside of. Raises `RuntimeError` outside of any."""
        context = current_context(self)
        if context is None:
            raise RuntimeError(
                "Current thread doesn't have a valid autograd context. Please wrap your code using "
                "`with autograd.context() as context_id`"
            )
        return context

    def release_context(self, identifier: int) -> None:
        """Ends a context here and on all workers that it has touched; raises for an unknown one."""
        self.leave_context(self.find_context(identifier))

    def leave_context(self, context: DistAutogradContext) -> None:
        """`release_context`, also of one that was released before."""
        if current_context(self) is context:
            set_current_context(None)
        self._release(context, None)

    def _release(self, context: DistAutogradContext, told_by: WorkerId | None) -> None:
        if not self._contexts.remove(context.id):
            return
        with self._lock:
            initiators = [each for each in self._initiators.values() if each.context is context]
        error = DistAutogradError(
            f"Could not find autograd context with id: {context.id}: it was released during "
            "the backward pass"
        )
        for initiator in initiators:
            initiator.fail(error)
        context.release(error)
        self._releases.tell(context.receivers - {told_by, self._worker.id}, context.id)

    # ------------------------------------------------------------ backward

    def backward(
        self,
        identifier: int,
        roots: Sequence[torch.Tensor],
        retain_graph: bool = False,
        mode: str = "smart",
        create_graph: bool = False,
    ) -> None:
        """Runs a backward pass from `roots`, scalars of this worker; see `api.backward`."""
        context = self._context_for_pass(identifier)
        entry, gradients = enter_at(roots)
        self._stitcher.outside.warn_of(entry)
        flags = flags_of(retain_graph or create_graph, create_graph, mode)
        with self._turn_in(context):
            self._run_pass(context, PassOptions(self._pass_ids(), flags), entry, gradients)
            if context.has_replicas:
                with self._messaging.blocked():
                    context.reduce_replicas()

    def gradients_at(
        self,
        identifier: int,
        roots: tuple[Entry, Gradients],
        edges: Sequence[GradientEdge],
        flags: int,
        elsewhere: Elsewhere,
    ) -> list[torch.Tensor | None]:
        """Runs a backward pass that adds nothing to the context; returns what arrives at `edges` of
        this worker. What arrives on other workers, `elsewhere` takes; see `api.grad`."""
        context = self._context_for_pass(identifier)
        self._stitcher.outside.warn_of(roots[0])
        with self._turn_in(context):
            options = PassOptions(self._pass_ids(), flags | messages.SELECTS)
            selection = context.select(options.id, edges)
            elsewhere.select(context, options.id)
            self._run_pass(context, options, *roots)
            elsewhere.take(context, options.id)
            return selection.take()

    def _context_for_pass(self, identifier: int) -> DistAutogradContext:
        refuse_to_block("a backward pass")
        context = self.find_context(identifier)
        if is_run_by_this_thread(context):
            raise RuntimeError(
                "backward was called within a backward pass of the same context; passes of one "
                "context follow one another"
            )
        return context

    @contextlib.contextmanager
    def _turn_in(self, context: DistAutogradContext) -> Iterator[None]:
        """Within, no other pass of this worker runs in the context."""
        if not context.turn.acquire(blocking=False):
            with self._messaging.blocked():
                context.turn.acquire()
        try:
            yield
        finally:
            context.turn.release()

    def _run_pass(
        self,
        context: DistAutogradContext,
        options: PassOptions,
        roots: Entry,
        gradients: Gradients,
    ) -> None:
        initiator = Initiator(self._worker, context, options, self._stitcher.sew)
        self._register(context, initiator)
        begun = RECORDER.begin()
        try:
            initiator.run(roots, gradients)
        finally:
            RECORDER.end(begun, "backward", f"backward pass of {context.id}", self._worker.name)
            with self._lock:
                del self._initiators[options.id]

    def _register(self, context: DistAutogradContext, initiator: Initiator) -> None:
        with self._lock:
            if not context.add_pass(self._worker.id, initiator.backward_pass):
                raise not_found(context.id)
            self._initiators[initiator.options.id] = initiator

    def _pass(self, identifier: int, options: PassOptions) -> BackwardPass | None:
        """The local part of a pass, begun on first contact; None when the pass is over."""
        context = self._contexts.get(identifier)
        if context is None:
            return None
        initiator = options.initiator
        with self._lock:
            latest = context.passes.get(initiator)
            if latest is not None and latest.options.id == options.id:
                return cast("BackwardPass", latest)
            if initiator == self._worker.id:
                return None
            if latest is not None and latest.options.id.counter > options.id.counter:
                return None
            conductor = RemoteInitiator(self._worker, identifier, options)
            begun = BackwardPass(self._worker, context, options, conductor, self._stitcher.sew)
            if not context.add_pass(initiator, begun):
                return None
        if latest is not None:
            latest.fail(DistAutogradError("the next backward pass has begun"))
        return begun

    def _known_pass(self, identifier: int, backward_pass: GlobalId) -> BackwardPass | None:
        context = self._contexts.get(identifier)
        known = None if context is None else context.passes.get(backward_pass.worker)
        is_it = known is not None and known.options.id == backward_pass
        return cast("BackwardPass", known) if is_it else None

    # ------------------------------------------------------------ messages of a pass

    def _on_gradient(self, sender: WorkerId, message: messages.Gradient) -> None:
        begun = RECORDER.begin()
        self._take_gradient(sender, message)
        if begun:
            gradients = message.body.items
            me = self._worker.name
            note_gradients(begun, "gradient received", me, message.message, gradients)

    def _take_gradient(self, sender: WorkerId, message: messages.Gradient) -> None:
        if message.stitch is not None:
            message = self._with_history(sender, message.stitch, message)
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:
            task = initiator.backward_pass.receive(message)
            if task is not None:
                initiator.offer(task)
            return
        options = PassOptions(message.backward_pass, message.flags)
        backward_pass = self._pass(message.context, options)
        if backward_pass is None:
            return
        if message.listens:
            backward_pass.answer_by_reply_push()
        task = backward_pass.receive(message)
        if task is not None:
            self._messaging.spawn(task)

    @in_plain_modes
    def _with_history(
        self, sender: WorkerId, stitch: messages.Stitch, message: messages.Gradient
    ) -> messages.Gradient:
        """Gradients whose graph begins where they arrive."""
        items = list(message.body.items)
        self._stitcher.incoming(sender, stitch, items)
        body = messages.Payload(message.body.encoding, message.body.stream, items)
        return replace(message, body=body)

    def _on_report(self, _sender: WorkerId, message: messages.Report) -> None:
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:
            initiator.report(message.emitted, message.consumed)

    def _on_need_parts(self, sender: WorkerId, message: messages.NeedParts) -> None:
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:
            self._messaging.spawn(partial(initiator.serve_parts, sender))

    def _on_ask_reach(self, sender: WorkerId, message: messages.AskReach) -> None:
        options = PassOptions(message.backward_pass, message.flags)
        backward_pass = self._pass(message.context, options)

        def answer() -> None:
            try:
                reach = Reach((), ()) if backward_pass is None else backward_pass.find_reach()
            except Exception as error:  # noqa: BLE001 - raised by `backward`, on the initiator
                assert backward_pass is not None
                backward_pass.abandon(error)
            else:
                self._tell(sender, messages.Reach(message.context, message.backward_pass, *reach))

        self._messaging.spawn(answer)

    def _on_reach(self, sender: WorkerId, message: messages.Reach) -> None:
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:
            reach = Reach(message.received, message.sent)
            self._messaging.spawn(partial(initiator.take_reach, sender, reach))

    def _on_parts(self, _sender: WorkerId, message: messages.Parts) -> None:
        options = PassOptions(message.backward_pass, message.flags)
        backward_pass = self._pass(message.context, options)
        if backward_pass is not None:
            parts = {stitch: frozenset(indices) for stitch, indices in message.parts}
            wanted = {stitch: frozenset(indices) for stitch, indices in message.wanted}
            for task in backward_pass.learn_parts(parts, wanted):
                self._messaging.spawn(task)

    def _on_failed(self, sender: WorkerId, message: messages.BackwardFailed) -> None:
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:

            def fail() -> None:
                error = remote_errors.from_payload(message.body, self._messaging.allowed)
                initiator.fail(error, sender, message.text)

            self._messaging.spawn(fail)

    def _on_abort(self, _sender: WorkerId, message: messages.Abort) -> None:
        # Begins the pass if need be: what comes of it later must find it ended.
        backward_pass = self._pass(message.context, PassOptions(message.backward_pass, 0))
        if backward_pass is not None:
            backward_pass.fail(DistAutogradError("the backward pass has failed on another worker"))

    def _on_ask_status(self, sender: WorkerId, message: messages.AskPassStatus) -> None:
        known = self._known_pass(message.context, message.backward_pass)
        status = PassStatus(0, 0, False, ()) if known is None else known.status()
        answer = messages.PassStatus(message.context, message.backward_pass, message.wave, *status)
        self._messaging.spawn(partial(self._tell, sender, answer))

    def _on_status(self, sender: WorkerId, message: messages.PassStatus) -> None:
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:
            status = PassStatus(message.sent, message.received, message.is_active, message.waiting)
            self._messaging.spawn(partial(initiator.take_status, message.wave, sender, status))

    # ------------------------------------------------------------ the end of contexts and peers

    def _on_release(self, sender: WorkerId, message: messages.ReleaseContext) -> None:
        context = self._contexts.get(message.context)
        if context is None:
            self._contexts.note_release(message.context)

        def release() -> None:
            answer = messages.ContextReleased(message.context)
            if context is None:
                self._tell(sender, answer)
                return
            self._release(context, sender)
            # Nobody waits for it: it may lie where replies go until somebody reads there. Should
            # nobody do so, the question will be repeated, and answered in the other way.
            with contextlib.suppress(LockstitchError):
                self._messaging.send_back(sender, answer)

        self._messaging.spawn(release)

    def _on_released(self, sender: WorkerId, message: messages.ContextReleased) -> None:
        self._releases.settle(sender, message.context)

    def _on_peer_lost(self, worker: WorkerId, error: PeerDiedError) -> None:
        self._releases.forget(worker)
        for context in self.contexts:
            if context_owner(context.id) == worker:
                self._release(context, worker)
        self._fail_passes(worker, error)

    def _fail_passes(self, worker: WorkerId, error: RpcError) -> None:
        """Fails all passes in which a worker takes part: what it had to say may never come."""
        with self._lock:
            initiators = list(self._initiators.values())
        for initiator in initiators:
            if initiator.involves(worker):
                initiator.fail(error)
        for context in self.contexts:
            for initiator_id, backward_pass in context.passes.copy().items():
                if initiator_id == worker:
                    backward_pass.fail(error)
                    # It may have seen the connection break before the pass began, and what was
                    # lost may have been a failure of ours: so it is told in any case.
                    conductor = RemoteInitiator(self._worker, context.id, backward_pass.options)
                    conductor.note_lost(error)
                elif worker in context.workers:
                    backward_pass.abandon(error)

    def _on_close(self) -> None:
        """This worker leaves: whoever waits for a pass of it must not wait for ever."""
        error = DistAutogradError(f"worker {self._worker.name!r} has shut down")
        with self._lock:
            initiators = list(self._initiators.values())
        contexts = self._contexts.clear()
        for initiator in initiators:
            initiator.fail(error)
        for context in contexts:
            context.release(error)

    def _tell(self, worker: WorkerId, message: messages.Message) -> None:
        # A worker that is gone needs to know nothing.
        with contextlib.suppress(LockstitchError):
            self._messaging.send(worker, message)
