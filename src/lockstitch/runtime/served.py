"""The requests that are being served now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.wire.messages import RemoteCall

if TYPE_CHECKING:
    from lockstitch.ids import WorkerId
    from lockstitch.runtime.invocation import Invocation


class Served:
    """The requests being served now, parked ones too."""

    def __init__(self) -> None:
        self._now: set[Invocation] = set()
        self.finished = 0
        self.repeated = 0
        """How many came a second time."""

    def begin(self, invocation: Invocation) -> None:
        self._now.add(invocation)

    def end(self, invocation: Invocation) -> None:
        """Harmless when repeated."""
        if invocation in self._now:
            self._now.discard(invocation)
            self.finished += 1

    def note_repeated(self, invocation: Invocation) -> None:
        """A request has come a second time, and is not served again."""
        self.repeated += 1
        body = getattr(invocation.message, "body", None)
        if body is not None:
            invocation.agent.discard(body, invocation.caller)

    def cancel(self, caller: WorkerId, request: int) -> None:
        """That request's time is over: if it is parked, it is served no more."""
        for each in self.list():
            is_it = each.caller == caller and each.message.request == request  # type: ignore[attr-defined]
            if is_it and each.is_parked and type(each.message) is not RemoteCall:
                self.end(each)

    def drop(self, caller: WorkerId) -> None:
        """That caller is gone: what is parked for it is served no more. Not what makes a value,
        which others may wait for."""
        for each in self.list():
            if each.caller == caller and each.is_parked and type(each.message) is not RemoteCall:
                self.end(each)

    def __len__(self) -> int:
        return len(self._now)

    def list(self) -> list[Invocation]:
        """A copy."""
        return list(self._now)
