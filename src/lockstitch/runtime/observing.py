"""What calls note of themselves while somebody counts or records them (`attach.recorder`).

The two ends of a call note it each for itself; the number of the request, and the names of the two,
tell which belong together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.attach.recorder import RECORDER
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.packing import payload_bytes

if TYPE_CHECKING:
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.pending import Pending
    from lockstitch.wire.messages import Message


def note_call(core: Core, peer: str, pending: Pending, received: int, *, has_failed: bool) -> None:
    """A thread that has waited for a call has its result, or its error."""
    end, name, me = core.clock.now(), name_of(pending.what), core.info.name
    sent = pending.sent
    RECORDER.note_call(me, "made", name, peer, end - pending.since, sent, received, has_failed)
    spans = RECORDER.spans
    if spans is not None:
        spans.add(
            "call", name, me, pending.since, end, peer, pending.number, 0.0, sent, received,
            has_failed,
        )  # fmt: skip


def note_sent(core: Core, peer: str, pending: Pending) -> None:
    """A call that no thread waits for has been sent."""
    spans = RECORDER.spans
    if spans is not None:
        name, now = name_of(pending.what), core.clock.now()
        key = (peer, pending.number)
        spans.add("send", name, core.info.name, pending.since, now, *key, 0.0, pending.sent)


def note_answer(
    core: Core, peer: str, pending: Pending, begun: float, received: int, *, has_failed: bool
) -> None:
    """The answer to such a call has been taken in since `begun`, or its error."""
    end, name, me = core.clock.now(), name_of(pending.what), core.info.name
    sent, since = pending.sent, pending.since
    RECORDER.note_call(me, "made", name, peer, end - since, sent, received, has_failed)
    spans = RECORDER.spans
    if spans is not None:
        key = (peer, pending.number)
        spans.add("answer", name, me, begun, end, *key, since, sent, received, has_failed)


class ObservedRequest:
    """What a request that is being served notes of itself."""

    __slots__ = ("_answered_at", "_core", "_has_failed", "_received", "_sent", "_since")

    def __init__(self, core: Core, since: float, message: Message) -> None:
        self._core = core
        self._since = since
        body = getattr(message, "body", None)  # its tensors are gone once they are unpacked
        self._received = 0 if body is None else payload_bytes(body)
        self._answered_at = 0.0
        self._sent = 0
        self._has_failed = False

    def note_answer(self, function: str, caller: str, sent: int, *, has_failed: bool) -> None:
        """Its answer is about to leave."""
        if self._answered_at:  # a failure instead of an answer that could not leave
            return
        core = self._core
        self._answered_at = now = core.clock.now()
        self._sent, self._has_failed = sent, has_failed
        me, seconds = core.info.name, now - self._since
        received = self._received
        RECORDER.note_call(me, "served", function, caller, seconds, sent, received, has_failed)

    def note_thread(self, kind: str, function: str, caller: str, number: int, begun: float) -> None:
        """It has held this thread since `begun`."""
        spans = RECORDER.spans
        if spans is not None:
            core = self._core
            at = self._answered_at if self._answered_at >= begun else 0.0
            spans.add(
                kind, function, core.info.name, begun, core.clock.now(), caller, number, at,
                self._sent, self._received, self._has_failed,
            )  # fmt: skip
