"""The backward passes of one worker: those that it conducts, and its part of those of others, with
the handlers of the messages that belong to them.

Handlers only keep the books; what they cause to run, they hand to the agent's threads.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from lockstitch.attach.recorder import RECORDER
from lockstitch.autograd.backward import BackwardPass
from lockstitch.autograd.conductor import PassOptions, RemoteInitiator
from lockstitch.autograd.contexts import not_found
from lockstitch.autograd.discovery import Reach
from lockstitch.autograd.initiator import Initiator
from lockstitch.autograd.observing import note_gradients
from lockstitch.autograd.termination import PassStatus
from lockstitch.errors import DistAutogradError, LockstitchError
from lockstitch.modes import in_plain_modes
from lockstitch.runtime import remote_errors
from lockstitch.wire import messages

if TYPE_CHECKING:
    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.contexts import Contexts
    from lockstitch.autograd.graph import Entry, Gradients
    from lockstitch.autograd.stitch import Stitcher
    from lockstitch.errors import RpcError
    from lockstitch.ids import GlobalId, WorkerId
    from lockstitch.runtime.worker import Worker


class Passes:
    """See the module. It is made before the worker starts."""

    def __init__(self, worker: Worker, contexts: Contexts, stitcher: Stitcher) -> None:
        self._worker = worker
        self._messaging = worker.agent
        self._contexts = contexts
        self._stitcher = stitcher
        self._initiators: dict[GlobalId, Initiator] = {}
        self._roots_ask = False
        """Whether they had to in the last pass through graphs of gradients."""
        self._lock = threading.Lock()
        handle = self._messaging.handle
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

    def __repr__(self) -> str:
        return f"<Passes of {self._worker.name!r} · {len(self._initiators)} conducted>"

    @property
    def conducted(self) -> list[Initiator]:
        """Those that this worker conducts now."""
        with self._lock:
            return list(self._initiators.values())

    # ------------------------------------------------------------ beginning, and failing

    def conduct(
        self,
        context: DistAutogradContext,
        options: PassOptions,
        roots: Entry,
        gradients: Gradients,
    ) -> None:
        """Runs a pass from `roots` of this worker; returns when it is finished on all workers, or
        raises its first error."""
        # Graphs of gradients and those of what they are of meet in many components, so that often
        # the roots have to know who takes part. A loop does the same again and again.
        goes_through_both = context.has_derivatives
        initiator = Initiator(
            self._worker,
            context,
            options,
            self._stitcher.sew,
            asks_first=goes_through_both and self._roots_ask,
        )
        with self._lock:
            if not context.add_pass(self._worker.id, initiator.backward_pass):
                raise not_found(context.id)
            self._initiators[options.id] = initiator
        begun = RECORDER.begin()
        try:
            initiator.run(roots, gradients)
        finally:
            RECORDER.end(begun, "backward", f"backward pass of {context.id}", self._worker.name)
            with self._lock:
                del self._initiators[options.id]
            if goes_through_both and not options.selects:
                self._roots_ask = initiator.roots_ask

    def fail_involving(self, worker: WorkerId, error: RpcError) -> None:
        """Fails all passes in which a worker takes part: what it had to say may never come."""
        for initiator in self.conducted:
            if initiator.involves(worker):
                initiator.fail(error)
        for context in self._contexts.alive():
            for initiator_id, backward_pass in context.passes.copy().items():
                if initiator_id == worker:
                    backward_pass.fail(error)
                    # It may have seen the connection break before the pass began, and what was
                    # lost may have been a failure of ours: so it is told in any case.
                    conductor = RemoteInitiator(self._worker, context.id, backward_pass.options)
                    conductor.note_lost(error)
                elif worker in context.workers:
                    backward_pass.abandon(error)

    # ------------------------------------------------------------ finding

    def _find(
        self, identifier: int, backward_pass: GlobalId, flags: int = 0
    ) -> BackwardPass | None:
        """The local part of a pass, begun on first contact; None when the pass is over."""
        context = self._contexts.get(identifier)
        if context is None:
            return None
        latest = context.passes.get(backward_pass.worker)
        if latest is not None and latest.options.id == backward_pass:
            return cast("BackwardPass", latest)
        return self._begin(context, PassOptions(backward_pass, flags))

    def _begin(self, context: DistAutogradContext, options: PassOptions) -> BackwardPass | None:
        initiator = options.initiator
        with self._lock:
            latest = context.passes.get(initiator)
            if latest is not None and latest.options.id == options.id:  # by another thread
                return cast("BackwardPass", latest)
            if initiator == self._worker.id:
                return None
            if latest is not None and latest.options.id.counter > options.id.counter:
                return None
            conductor = RemoteInitiator(self._worker, context.id, options)
            begun = BackwardPass(self._worker, context, options, conductor, self._stitcher.sew)
            if not context.add_pass(initiator, begun):
                return None
        if latest is not None:
            latest.fail(DistAutogradError("the next backward pass has begun"), may_be_over=True)
        return begun

    def _known(self, identifier: int, backward_pass: GlobalId) -> BackwardPass | None:
        context = self._contexts.get(identifier)
        known = None if context is None else context.passes.get(backward_pass.worker)
        is_it = known is not None and known.options.id == backward_pass
        return cast("BackwardPass", known) if is_it else None

    # ------------------------------------------------------------ gradients and reports

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
            if message.listens:
                initiator.answer_by_reply_push(sender)
            task = initiator.backward_pass.receive(message)
            if task is not None:
                initiator.offer(task)
            return
        backward_pass = self._find(message.context, message.backward_pass, message.flags)
        if backward_pass is None:
            return
        if message.listens:
            backward_pass.answer_by_reply_push(sender)
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

    # ------------------------------------------------------------ who takes part

    def _on_need_parts(self, sender: WorkerId, message: messages.NeedParts) -> None:
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:
            self._messaging.spawn(partial(initiator.serve_parts, sender))

    def _on_ask_reach(self, sender: WorkerId, message: messages.AskReach) -> None:
        backward_pass = self._find(message.context, message.backward_pass, message.flags)

        if backward_pass is None:
            none = messages.Reach(message.context, message.backward_pass, (), ())
            self._messaging.spawn(partial(self._tell, sender, none))
            return
        if message.listens:
            backward_pass.answer_by_reply_push(sender)
        self._messaging.spawn(backward_pass.tell_reach)

    def _on_reach(self, sender: WorkerId, message: messages.Reach) -> None:
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:
            reach = Reach(message.received, message.sent)
            initiator.offer(partial(initiator.take_reach, sender, reach))

    def _on_parts(self, _sender: WorkerId, message: messages.Parts) -> None:
        backward_pass = self._find(message.context, message.backward_pass, message.flags)
        if backward_pass is not None:
            parts = {stitch: frozenset(indices) for stitch, indices in message.parts}
            wanted = {stitch: frozenset(indices) for stitch, indices in message.wanted}
            for task in backward_pass.learn_parts(parts, wanted):
                self._messaging.spawn(task)

    # ------------------------------------------------------------ failures, and standstill

    def _on_failed(self, sender: WorkerId, message: messages.BackwardFailed) -> None:
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:

            def fail() -> None:
                try:
                    error = remote_errors.from_payload(message.body, self._messaging.allowed)
                except Exception as unreadable:  # noqa: BLE001 - raised by `backward`
                    error = unreadable
                initiator.fail(error, sender, message.text)

            self._messaging.spawn(fail)

    def _on_abort(self, _sender: WorkerId, message: messages.Abort) -> None:
        # Begins the pass if need be: what comes of it later must find it ended.
        backward_pass = self._find(message.context, message.backward_pass)
        if backward_pass is not None:
            backward_pass.fail(DistAutogradError("the backward pass has failed on another worker"))

    def _on_ask_status(self, sender: WorkerId, message: messages.AskPassStatus) -> None:
        known = self._known(message.context, message.backward_pass)
        status = PassStatus(0, 0, False, ()) if known is None else known.status()
        answer = messages.PassStatus(message.context, message.backward_pass, message.wave, *status)
        self._messaging.spawn(partial(self._tell, sender, answer))

    def _on_status(self, sender: WorkerId, message: messages.PassStatus) -> None:
        initiator = self._initiators.get(message.backward_pass)
        if initiator is not None:
            status = PassStatus(message.sent, message.received, message.is_active, message.waiting)
            self._messaging.spawn(partial(initiator.take_status, message.wave, sender, status))

    def _tell(self, worker: WorkerId, message: messages.Message) -> None:
        # A worker that is gone needs to know nothing.
        with contextlib.suppress(LockstitchError):
            self._messaging.send(worker, message)
