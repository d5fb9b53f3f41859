"""What becomes of the answers to requests: a value or an error, in the thread that waits, or for a
future.

Values are made here in plain modes of torch (`lockstitch.modes`), whatever mode their reader is in.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from lockstitch.attach.recorder import RECORDER
from lockstitch.errors import RpcTimeoutError, add_note
from lockstitch.runtime import remote_errors
from lockstitch.runtime.functions import TO_HERE, name_of
from lockstitch.runtime.observing import note_answer
from lockstitch.runtime.packing import payload_bytes
from lockstitch.runtime.pending import Future
from lockstitch.wire.encodings import CARRY_OWN
from lockstitch.wire.messages import Failure, Message, Payload, Reply
from lockstitch.wire.staging import StagedPayload, settled
from lockstitch.wire.unpickling import unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerId
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.packing import Values
    from lockstitch.runtime.peers import Peers
    from lockstitch.runtime.pending import Pending


class Answers:
    """Those to the requests of one worker. `handle(sender, message)` takes what is no answer and
    comes where answers belong."""

    def __init__(
        self,
        core: Core,
        values: Values,
        peers: Peers,
        handle: Callable[[WorkerId, Message], None],
    ) -> None:
        self.handle = handle
        self.explain_timeout: Callable[[WorkerId, Pending], str] | None = None
        """Says what the callee of a request does whose time is over; it may wait for a moment."""
        self._core = core
        self._now = core.now
        self._values = values
        self._peers = peers
        self._device_maps = core.device_maps

    def result(self, pending: Pending, peer: WorkerId) -> Any:
        """The value of a finished request; raises its exception."""
        if pending.error is not None:
            if isinstance(pending.error, RpcTimeoutError):
                self._explain(pending.error, pending, peer)
            raise pending.error
        answer = pending.answer
        if type(answer) is not Reply:
            assert isinstance(answer, Failure)
            raise remote_errors.from_payload(answer.body, self._core.allowed)
        body = answer.body
        if self._device_maps or type(body) is StagedPayload:
            body = self._settled(body, peer, is_used_here=pending.future is None)
        try:
            if answer.stitch is None:
                if body.items:
                    self._values.note_unstitched(body.items, partial(self._origin, pending, peer))
                if body.encoding not in CARRY_OWN:
                    return unpack(body, self._values.pickling)
            return self._values.unpack_from(body, answer.stitch, peer, records=pending.records)
        except Exception as error:
            call = (
                "" if pending.what in (None, TO_HERE) else f" to a call of {name_of(pending.what)}"
            )
            name = self._peers.info_of(peer).name
            add_note(error, f"on reading what worker {name!r} has answered{call}")
            raise

    def _origin(self, pending: Pending, peer: WorkerId) -> str:
        name = self._peers.info_of(peer).name
        if pending.what is TO_HERE:
            return f"was fetched from worker {name!r} by to_here()"
        return f"worker {name!r} has returned from a call of {name_of(pending.what)}"

    def _settled(self, body: Payload, peer: WorkerId, *, is_used_here: bool) -> Payload:
        """An answer with its tensors where the device map for `peer` says."""
        device_map = self._device_maps.get(peer)
        if device_map is None and type(body) is not StagedPayload:
            return body
        try:
            return settled(body, device_map, is_used_here=is_used_here)
        except BaseException:
            self._values.discard(body, peer)
            raise

    def discard(self, body: Payload, peer: WorkerId) -> None:
        """Nobody will read this answer: gives back what it carries."""
        self._values.discard(body, peer)

    def complete_future(
        self, pending: Pending, answer: Message, peer: WorkerId, *, is_waiting: bool = False
    ) -> None:
        """Completes a future: at once where that is cheap, or where this very thread waits for it;
        else on the thread pool."""
        future = pending.future
        assert future is not None
        is_cheap = (
            isinstance(answer, Reply)
            and answer.body.encoding not in CARRY_OWN
            and type(answer.body) is not StagedPayload
        )
        if is_cheap or is_waiting:
            # First, for whoever attaches a callback just now.
            future.settled_by = threading.get_ident()
            if not future.has_callbacks:
                self._settle(pending, answer, peer)
                return
            future.settled_by = 0
        # No interrupt comes there: whatever is raised, the program's objects raise it.
        settle = partial(self._settle, pending, answer, peer, BaseException)
        self._core.thread_pool.spawn(settle)

    def _settle(
        self,
        pending: Pending,
        answer: Message,
        peer: WorkerId,
        raised_later: type[BaseException] = Exception,
    ) -> None:
        future = pending.future
        assert future is not None
        pending.answer = answer
        value, error = None, None
        begun, received = (self._now(), bytes_of(answer)) if RECORDER.is_on else (0.0, 0)
        try:
            value = self.result(pending, peer)
        except raised_later as raised:  # where the user waits
            error = raised
        if begun:
            note_answer(self._core, pending, begun, received, has_failed=error is not None)
        # Out here, so that what a callback raises has not come up while handling that.
        body = getattr(answer, "body", None)
        if error is None and type(body) is StagedPayload and isinstance(future, Future):
            future.landed = body.landed
        future.complete(value, error)
        pending.finish(answer, None)

    def fail_pending(
        self, pending: Pending, error: BaseException, peer: WorkerId | None = None
    ) -> None:
        """A request ends in an error of this side. `peer`: who is to be asked what it does, if the
        request's time is over."""
        if pending.future is None:
            pending.finish(None, error)
            return
        future = pending.future

        asks = peer is not None and self.explain_timeout is not None

        def fail() -> None:
            if peer is not None and isinstance(error, RpcTimeoutError):
                self._explain(error, pending, peer)
            if RECORDER.is_on and pending.peer and not pending.done:
                note_answer(self._core, pending, self._now(), 0, has_failed=True)
            future.complete(None, error)
            pending.finish(None, error)

        if (future.has_callbacks or asks) and not self._core.is_closed:
            self._core.thread_pool.spawn(fail)
        else:
            fail()

    def _explain(self, error: RpcTimeoutError, pending: Pending, peer: WorkerId) -> None:
        """Has an error say what the callee does, where it says so at once."""
        if self.explain_timeout is not None and not self._core.is_closed:
            said = self.explain_timeout(peer, pending)
            if said:
                error.args = (f"{error}; {said}",)


def bytes_of(answer: Message | None) -> int:
    """Returns the size of the values in an answer."""
    return 0 if answer is None else payload_bytes(answer.body)  # type: ignore[attr-defined]
