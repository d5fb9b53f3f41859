"""What calls note of themselves while somebody looks on: those that no thread waits for, and what
serves a call. For the others see `Outgoing._await`.

The two ends of a call note it each for itself (`attach.recorder`); the number of the request, and
the names of the two, tell which belong together. What can be is done while somebody waits anyway:
before the answer is there, and by the callee after it has left.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from lockstitch.attach.recorder import RECORDER, SETTLED_AT
from lockstitch.attach.spans import NOT_COUNTED
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.invocation import Invocation
from lockstitch.runtime.packing import payload_bytes
from lockstitch.wire.messages import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.attach.spans import Label
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.pending import Pending
    from lockstitch.wire.messages import Reply


def note_sent(core: Core, pending: Pending) -> None:
    """A call that no thread waits for has been sent."""
    if RECORDER.spans is not None:
        RECORDER.note(
            (
                ("send", name_of(pending.what), core.info.name, pending.peer), get_ident(),
                pending.since, core.now(), pending.number, 0.0, pending.sent, 0, False,
                NOT_COUNTED,
            )
        )  # fmt: skip


def note_answer(
    core: Core, pending: Pending, begun: float, received: int, *, has_failed: bool
) -> None:
    """The answer to such a call has been taken in since `begun`, or its error."""
    since, end = pending.since, core.now()
    RECORDER.note(
        (
            ("answer", name_of(pending.what), core.info.name, pending.peer), get_ident(), begun,
            end, pending.number, since, pending.sent, received, has_failed, end - since,
        )
    )  # fmt: skip


class NotedInvocation(Invocation):
    """A request whose serving is noted, and its answer: when that leaves, with how much, and
    whether it is an error."""

    __slots__ = ("_answer", "_answered_at", "_received")
    _answer: Reply | Failure | None
    _answered_at: float
    _received: int

    def serve(self) -> None:
        """See `Invocation.serve`."""
        body = getattr(self.message, "body", None)  # its tensors are gone once it is unpacked
        self._received = 0 if body is None else payload_bytes(body)
        self._answer = None
        begun = self._core.now()
        Invocation.serve(self)
        label = self.known.served_as
        if label is None:
            label = self.known.served_as = self._label("serve")
        self._note(label, begun)

    def _on_thread(self, kind: str, run: Callable[[], None]) -> None:
        begun = self._core.now()
        try:
            run()
        finally:
            self._note(self._label(kind), begun)

    def _label(self, kind: str) -> Label:
        return kind, self.what, self._core.info.name, self._requests.peer.name

    def _note(self, label: Label, begun: float) -> None:
        """Notes that it has held this thread."""
        ended, answer = self._core.now(), self._answer
        at, sent, seconds = 0.0, 0, NOT_COUNTED
        if answer is not None:
            at, sent = self._answered_at, payload_bytes(answer.body)
            self._answer, seconds = None, at - self.since
        number: int = self.message.request  # type: ignore[attr-defined]
        rows = RECORDER.rows
        rows.append(
            (
                label, get_ident(), begun, ended, number, at, sent, self._received,
                type(answer) is Failure, seconds,
            )
        )  # fmt: skip
        if len(rows) >= SETTLED_AT:
            RECORDER.settle()

    def _send(self, message: Reply | Failure) -> None:
        self._answered_at = self._core.now()
        Invocation._send(self, message)
        self._answer = message
