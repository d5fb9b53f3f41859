"""The initiator of a backward pass as the other workers see it: what they tell it, they send."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from lockstitch.errors import LockstitchError
from lockstitch.runtime import remote_errors
from lockstitch.wire.messages import BackwardFailed, NeedParts, Payload, Report
from lockstitch.wire.pickling import PICKLE

if TYPE_CHECKING:
    from lockstitch.autograd.backward import Task, Terms
    from lockstitch.autograd.post import Participant
    from lockstitch.ids import GlobalId
    from lockstitch.wire.messages import Message

# See `initiator.PATIENCE_SECONDS`.
_PATIENCE_SECONDS = 0.0002


class DistantInitiator:
    """The conductor of one pass (see `backward.Conductor`), on a worker that only takes part."""

    is_distant = True

    def __init__(self, worker: Participant, context: int, terms: Terms) -> None:
        self._worker = worker
        self._context = context
        self._terms = terms
        self._has_asked = False

    def report(
        self, emitted: tuple[GlobalId, ...], consumed: tuple[GlobalId, ...], roots_ran: bool = False
    ) -> None:
        """See `termination`."""
        assert not roots_ran
        self._tell(Report(self._context, self._terms.id, emitted, consumed))

    def need_parts(self) -> None:
        """See `Conductor.need_parts`."""
        self._has_asked = True
        self._tell(NeedParts(self._context, self._terms.id))

    def patience(self) -> float | None:
        """See `Conductor.patience`. A fast pass needs no parts, and the initiator sees if it is
        stuck."""
        return None if self._has_asked or self._terms.fast else _PATIENCE_SECONDS

    def lose_patience(self) -> None:
        """See `Conductor.lose_patience`."""
        self.need_parts()

    def hand_over(self, task: Task) -> None:
        """The loss's roots are on the initiator; never called."""
        raise AssertionError(task)

    def fail(self, error: BaseException) -> None:
        """The error crosses like that of a call."""
        described = remote_errors.describe(error, self._worker.name)
        body = Payload(PICKLE, pickle.dumps(described, 5), ())
        self._tell(BackwardFailed(self._context, self._terms.id, str(error), body))

    def _tell(self, message: Message) -> None:
        try:
            self._worker.agent.send(self._terms.initiator, message)
        except LockstitchError:
            pass  # the initiator is gone, and the pass with it
