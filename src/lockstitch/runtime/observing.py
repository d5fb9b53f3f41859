"""What calls note of themselves while somebody looks on: those that no thread waits for, and what
serves a call. For the others see `Outgoing._await`.

The two ends of a call note it each for itself (`attach.recorder`); the number of the request, and
the names of the two, tell which belong together. The callee does what it can after its answer has
left.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from lockstitch.attach.recorder import RECORDER
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.invocation import Invocation
from lockstitch.runtime.packing import payload_bytes
from lockstitch.wire.messages import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.runtime.core import Core
    from lockstitch.runtime.pending import Pending
    from lockstitch.wire.messages import Reply


def note_sent(core: Core, pending: Pending) -> None:
    """A call that no thread waits for has been sent."""
    if RECORDER.spans is not None:
        label = ("send", name_of(pending.what), core.info.name, pending.peer)
        RECORDER.note(
            (label, get_ident(), pending.since, core.now(), pending.number, 0.0, pending.sent, 0,
             False)
        )  # fmt: skip


def note_answer(
    core: Core, pending: Pending, begun: float, received: int, *, has_failed: bool
) -> None:
    """The answer to such a call has been taken in since `begun`, or its error."""
    since, end, sent = pending.since, core.now(), pending.sent
    noted = RECORDER.noted("answer", name_of(pending.what), core.info.name, pending.peer)
    RECORDER.note_call(noted, begun, end, pending.number, since, sent, received, has_failed)


class RecordedInvocation(Invocation):
    """A request of which is recorded when it holds a thread, and its answer: when that leaves, with
    how much, and whether it is an error."""

    __slots__ = ("_answer", "_answered_at")
    _answer: Reply | Failure | None
    _answered_at: float

    def serve(self) -> None:
        """See `Invocation.serve`."""
        self._answer = None
        begun = self._core.now()
        Invocation.serve(self)
        self._note("serve", begun)

    def _on_thread(self, kind: str, run: Callable[[], None]) -> None:
        begun = self._core.now()
        try:
            run()
        finally:
            self._note(kind, begun)

    def _note(self, kind: str, begun: float) -> None:
        """Notes that it has held this thread."""
        ended, answer = self._core.now(), self._answer
        label, _ = self._noted()
        at, sent, received = 0.0, 0, self._bytes_received()
        if answer is not None:
            at, self._answer = self._answered_at, None
            sent = payload_bytes(answer.body)
        if kind != "serve":
            label = (kind, *label[1:])
        number: int = self.message.request  # type: ignore[attr-defined]
        RECORDER.note(
            (label, get_ident(), begun, ended, number, at, sent, received, type(answer) is Failure)
        )

    def _send(self, message: Reply | Failure) -> None:
        self._answered_at = self._core.now()
        Invocation._send(self, message)
        self._answer = message
