"""What calls note of themselves while somebody counts or records them (`attach.recorder`).

The two ends of a call note it each for itself; the number of the request, and the names of the two,
tell which belong together. What can be is done while the caller waits anyway: before the answer is
there, and by the callee after it has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.attach.recorder import RECORDER
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.packing import payload_bytes

if TYPE_CHECKING:
    from lockstitch.attach.traffic import Series
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.pending import Pending
    from lockstitch.wire.messages import Message


class ObservedCall:
    """A call that a thread waits for: made when it has been sent."""

    __slots__ = ("_core", "_name", "_peer", "_pending", "_series")

    def __init__(self, core: Core, peer: str, pending: Pending) -> None:
        self._core, self._peer, self._pending = core, peer, pending
        self._name = name_of(pending.what)
        self._series = _series_of(core, self._name, peer)

    def note(self, received: int, *, has_failed: bool) -> None:
        """Its result is there, or its error."""
        pending, end = self._pending, self._core.clock.now()
        since, sent = pending.since, pending.sent
        RECORDER.note_call(self._series, end, end - since, sent, received, failed=has_failed)
        spans = RECORDER.spans
        if spans is not None:
            spans.add(
                "call", self._name, self._core.info.name, since, end, self._peer, pending.number,
                0.0, sent, received, has_failed,
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
    end, name = core.clock.now(), name_of(pending.what)
    sent, since = pending.sent, pending.since
    series = _series_of(core, name, peer)
    RECORDER.note_call(series, end, end - since, sent, received, failed=has_failed)
    spans = RECORDER.spans
    if spans is not None:
        key = (peer, pending.number)
        me = core.info.name
        spans.add("answer", name, me, begun, end, *key, since, sent, received, has_failed)


class ObservedRequest:
    """What a request that is being served notes of itself."""

    __slots__ = ("_answered_at", "_core", "_has_failed", "_is_counted", "_received", "_sent")

    def __init__(self, core: Core, message: Message) -> None:
        self._core = core
        body = getattr(message, "body", None)  # its tensors are gone once they are unpacked
        self._received = 0 if body is None else payload_bytes(body)
        self._answered_at = 0.0
        self._sent = 0
        self._has_failed = self._is_counted = False

    def note_answer(self, sent: int, *, has_failed: bool) -> None:
        """Its answer is about to leave."""
        if not self._answered_at:  # else a failure follows an answer that could not leave
            self._answered_at = self._core.clock.now()
        self._sent, self._has_failed = sent, has_failed

    def note_thread(
        self, kind: str, about: tuple[str, str, int], since: float, begun: float
    ) -> None:
        """It has held this thread since `begun`. `about`: the function, the caller, the number of
        the request, which has come at `since`."""
        core, answered_at = self._core, self._answered_at
        function, caller, number = about
        now, me = core.clock.now(), core.info.name
        sent, received, has_failed = self._sent, self._received, self._has_failed
        if answered_at and not self._is_counted:
            self._is_counted = True
            series = RECORDER.traffic.series(me, "served", function, caller)
            seconds = answered_at - since
            RECORDER.note_call(series, now, seconds, sent, received, failed=has_failed)
        spans = RECORDER.spans
        if spans is not None:
            at = answered_at if answered_at >= begun else 0.0
            key = (caller, number)
            spans.add(kind, function, me, begun, now, *key, at, sent, received, has_failed)


def _series_of(core: Core, function: str, peer: str) -> Series:
    return RECORDER.traffic.series(core.info.name, "made", function, peer)
