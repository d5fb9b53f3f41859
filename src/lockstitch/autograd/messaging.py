"""What distributed autograd asks of the rest of Lockstitch: a way to send, threads, and to be told.

`runtime.Worker` and `runtime.Agent` fit; so does the post office of the tests, which delays and
reorders what it carries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from lockstitch.wire.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from lockstitch.clock import Clock
    from lockstitch.errors import ConnectionLostError, PeerDiedError
    from lockstitch.ids import WorkerId
    from lockstitch.runtime.interceptor import Interceptor
    from lockstitch.runtime.reply_side_push import PushListener
    from lockstitch.trust.registry import Registry

M = TypeVar("M", bound=Message)


class Messaging(Protocol):
    """Sends control messages and runs tasks. See `runtime.Agent` for each."""

    interceptor: Interceptor | None
    allowed: Registry | None

    def send(self, to: WorkerId, message: Message) -> None: ...

    def listen(self, to: WorkerId) -> PushListener | None: ...

    def send_back(self, to: WorkerId, message: Message) -> None: ...

    def handle(self, cls: type[M], handler: Callable[[WorkerId, M], None]) -> None: ...

    def spawn(self, task: Callable[[], None]) -> None: ...

    def blocked(self) -> AbstractContextManager[None]: ...

    def call_later(self, seconds: float, task: Callable[[], None]) -> None: ...

    def on_close(self, callback: Callable[[], None]) -> None: ...

    def add_concern(self, workers: Callable[[], Iterable[WorkerId]]) -> None: ...

    def on_connection_lost(
        self, callback: Callable[[WorkerId, ConnectionLostError], None]
    ) -> None: ...

    def on_peer_lost(self, callback: Callable[[WorkerId, PeerDiedError], None]) -> None: ...


class Participant(Protocol):
    """A worker, as far as distributed autograd needs one."""

    @property
    def id(self) -> WorkerId: ...

    @property
    def name(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def agent(self) -> Messaging: ...

    def active(self) -> AbstractContextManager[None]: ...
