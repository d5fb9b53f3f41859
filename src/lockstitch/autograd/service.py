"""Distributed autograd of one worker: its contexts, from their beginning to their end, and what
programs ask of them.

The service plugs into the worker's agent: as the interceptor that stitches messages, and as the
handler of the messages by which contexts end. Backward passes are the business of `passes`.
"""

from __future__ import annotations

import contextlib
import weakref
from functools import partial
from typing import TYPE_CHECKING, Protocol

from lockstitch.attach.values import Counter, OtherWait
from lockstitch.autograd import replicas
from lockstitch.autograd.conductor import PassOptions, flags_of
from lockstitch.autograd.context import (
    context_of_this_thread,
    current_context,
    set_current_context,
)
from lockstitch.autograd.contexts import Contexts
from lockstitch.autograd.engine import is_run_by_this_thread
from lockstitch.autograd.passes import Passes
from lockstitch.autograd.releases import Releases
from lockstitch.autograd.reports import report_context
from lockstitch.autograd.roots import enter_at
from lockstitch.autograd.stitch import Stitcher
from lockstitch.errors import DistAutogradError, LockstitchError, PeerDiedError
from lockstitch.ids import IdSource, WorkerId, context_owner
from lockstitch.runtime.inherited import refuse_to_block
from lockstitch.wire import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.autograd.graph import GradientEdge

    from lockstitch.attach.values import ContextReport
    from lockstitch.autograd.context import DistAutogradContext
    from lockstitch.autograd.graph import Entry, Gradients
    from lockstitch.ids import GlobalId
    from lockstitch.runtime.worker import Worker


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

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._messaging = worker.agent
        self._contexts = Contexts(worker.id, self)
        self._releases = Releases(worker)
        self._pass_ids = IdSource(worker.id)
        self._stitcher = Stitcher(worker.id, IdSource(worker.id), self._contexts.join, self)
        self._messaging.interceptor = self._stitcher
        self._passes = Passes(worker, self._contexts, self._stitcher)
        handle = self._messaging.handle
        handle(messages.ReleaseContext, self._on_release)
        handle(messages.ContextReleased, self._on_released)
        self._messaging.on_peer_lost(self._on_peer_lost)
        self._messaging.on_connection_lost(self._passes.fail_involving)
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
        conducted = {initiator.context.id for initiator in self._passes.conducted}
        return len(conducted | {each.id for each in self.contexts if each.runs.is_occupied})

    def waits(self) -> list[OtherWait]:
        """Each backward pass and each gradient that is waited for here."""
        waits = [
            OtherWait(
                f"backward of context {each.context.id}: {each.describe()}",
                ranks=tuple(rank for rank in each.working_ranks() if rank != self._worker.id.rank),
            )
            for each in self._passes.conducted
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

    def new_context(self, block: object = None) -> DistAutogradContext:
        """Opens a context and makes it the current thread's. `block`: what lives until it is left.
        Should that go before (an interrupt has struck while it was left), the next one opened by
        this thread takes the place of this one.

        Raises `RuntimeError` where the thread is inside of one already.
        """
        current = current_context(self)
        if current is not None and current.block is not None and current.block() is None:
            self.leave_context(current)
            current = None
        if current is not None:
            raise RuntimeError(
                f"Already have an autograd context id for this thread: {current.id}. A thread is "
                "in one context at a time: end its block first, or open the other in another thread"
            )
        context = self._contexts.new()
        if block is not None:
            context.block = weakref.ref(block)
        set_current_context(context)  # first: whoever is struck now is found by the next
        self._contexts.add(context)
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
        try:
            if current_context(self) is context:
                set_current_context(None)
            self._release(context, None)
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt: all of it again where none comes
                self._messaging.spawn(partial(self._release_again, context))
                if current_context(self) is context:
                    set_current_context(None)
            raise

    def _release_again(self, context: DistAutogradContext) -> None:
        if not self._contexts.remove(context.id):
            self._contexts.note_release(context.id)
        self._end(context, None)

    def _release(self, context: DistAutogradContext, told_by: WorkerId | None) -> None:
        if self._contexts.remove(context.id):
            self._end(context, told_by)

    def _end(self, context: DistAutogradContext, told_by: WorkerId | None) -> None:
        initiators = [each for each in self._passes.conducted if each.context is context]
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
        self._take_turn(context)
        try:
            options = PassOptions(self._pass_ids(), flags)
            self._passes.conduct(context, options, entry, gradients)
            if context.has_replicas:
                with self._messaging.blocked():
                    context.reduce_replicas()
        finally:
            context.turn.release()

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
        self._take_turn(context)
        try:
            options = PassOptions(self._pass_ids(), flags | messages.SELECTS)
            selection = context.select(options.id, edges)
            elsewhere.select(context, options.id)
            self._passes.conduct(context, options, *roots)
            elsewhere.take(context, options.id)
            return selection.take()
        finally:
            context.turn.release()

    def _context_for_pass(self, identifier: int) -> DistAutogradContext:
        refuse_to_block("a backward pass")
        context = self.find_context(identifier)
        if is_run_by_this_thread(context):
            raise RuntimeError(
                "backward was called within a backward pass of the same context; passes of one "
                "context follow one another"
            )
        return context

    def _take_turn(self, context: DistAutogradContext) -> None:
        """Until its lock is released, no other pass of this worker runs in the context."""
        if not context.turn.acquire(blocking=False):
            with self._messaging.blocked():
                context.turn.acquire()

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
        self._passes.fail_involving(worker, error)

    def _on_close(self) -> None:
        """This worker leaves: whoever waits for a pass of it must not wait for ever."""
        error = DistAutogradError(f"worker {self._worker.name!r} has shut down")
        initiators = self._passes.conducted
        contexts = self._contexts.clear()
        for initiator in initiators:
            initiator.fail(error)
        for context in contexts:
            context.release(error)

    def _tell(self, worker: WorkerId, message: messages.Message) -> None:
        # A worker that is gone needs to know nothing.
        with contextlib.suppress(LockstitchError):
            self._messaging.send(worker, message)
