"""The requests of other workers that are being served now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from lockstitch.wire.messages import RemoteCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerId
    from lockstitch.wire.messages import Message, Payload


class Request(Protocol):
    """What is to be known of a request here; an `Invocation` is one."""

    caller: WorkerId
    message: Message
    is_parked: bool
    """It holds no thread, and waits for something."""

    def abandon(self) -> None:
        """Nobody wants the answer any more."""
        ...


R = TypeVar("R", bound=Request)


class RunningRequests(Generic[R]):
    """The requests being served now, parked ones too. `discard(payload, sender)` gives back what a
    payload carries that nobody will read."""

    def __init__(self, discard: Callable[[Payload, WorkerId], None]) -> None:
        self._discard = discard
        self._now: set[R] = set()
        self.finished = 0
        self.repeated = 0
        """How many came a second time."""

    def begin(self, request: R) -> None:
        self._now.add(request)

    def end(self, request: R) -> None:
        """Notes that a request was served; harmless when repeated."""
        if request in self._now:
            self._now.discard(request)
            self.finished += 1

    def note_repeated(self, repeated: R) -> None:
        """A request has come a second time, and is not served again."""
        self.repeated += 1
        body = getattr(repeated.message, "body", None)
        if body is not None:
            self._discard(body, repeated.caller)

    def cancel(self, caller: WorkerId, request: int) -> None:
        """Ends a request whose time is over, if it is parked."""
        for each in self.list():
            is_it = each.caller == caller and each.message.request == request  # type: ignore[attr-defined]
            if is_it and each.is_parked and type(each.message) is not RemoteCall:
                self._abandon(each)

    def drop(self, caller: WorkerId) -> None:
        """Ends what is parked for a caller that is gone. Not what makes a value,
        which others may wait for."""
        for each in self.list():
            if each.caller == caller and each.is_parked and type(each.message) is not RemoteCall:
                self._abandon(each)

    def _abandon(self, request: R) -> None:
        self.end(request)
        request.abandon()

    def __len__(self) -> int:
        return len(self._now)

    def list(self) -> list[R]:
        """Returns the requests, as a copy that does not change."""
        return list(self._now)
