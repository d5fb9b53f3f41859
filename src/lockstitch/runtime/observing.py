"""What calls that no thread waits for note of themselves while somebody looks on.

For the others see `Outgoing._await`, and for what serves them `Invocation`. The two ends of a call
note it each for itself (`attach.recorder`); the number of the request, and the names of the two,
tell which belong together. What can be is done while somebody waits anyway: before the answer is
there, and by the callee after it has left.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from lockstitch.attach.recorder import RECORDER
from lockstitch.attach.spans import NOT_COUNTED
from lockstitch.runtime.functions import name_of

if TYPE_CHECKING:
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.pending import Pending


def note_sent(core: Core, pending: Pending) -> None:
    """A call that no thread waits for has been sent."""
    if RECORDER.spans is not None:
        RECORDER.note(
            (
                "send", name_of(pending.what), core.info.name, get_ident(), pending.since,
                core.now(), pending.peer, pending.number, 0.0, pending.sent, 0, False,
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
            "answer", name_of(pending.what), core.info.name, get_ident(), begun, end, pending.peer,
            pending.number, since, pending.sent, received, has_failed, end - since,
        )
    )  # fmt: skip
