"""What a worker does for others: who serves which kind of message, and what is being served now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.errors import RemoteProtocolError
from lockstitch.runtime.running_requests import RunningRequests

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerId
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.packing import Values
    from lockstitch.wire.messages import Message


class Serving:
    """See the module. Handlers take `(sender, message)` and are short; servers take an
    `Invocation`, and may run user code. Both are set by `Agent.handle` and `Agent.serve`.
    `is_lost(worker)` says whether a caller is known to be gone."""

    def __init__(self, core: Core, values: Values, is_lost: Callable[[WorkerId], bool]) -> None:
        self.core = core
        self.values = values
        self.is_lost = is_lost
        self.handlers: dict[type[Message], Callable[[WorkerId, Any], None]] = {}
        self.servers: dict[type[Message], Callable[[Any], None]] = {}
        self.running: RunningRequests[Any] = RunningRequests(values.discard)

    def handle(self, sender: WorkerId, message: Message) -> None:
        """A message that is no answer has come where answers belong."""
        handler = self.handlers.get(type(message))
        if handler is None:
            raise RemoteProtocolError(f"a {type(message).__name__} came where replies belong")
        handler(sender, message)
