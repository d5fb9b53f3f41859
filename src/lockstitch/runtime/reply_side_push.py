"""Reply-side push: a peer sends us messages of its own where its replies to our calls go.

A control message usually travels on its sender's own connection and is read by the receiver's
thread pool; a thread that waits for what it brings must then be woken. Where two workers send each
other messages in turn (a backward pass), the one that began may *listen* instead: it says so, the
other sends what it has for it over the connection on which replies come, and the thread that waits
reads that connection itself, as it does for the reply to a call.

Whoever listens need not read: while nobody does, the pool's reader does so a moment later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.runtime.pending import Pending


class PushChannel(Protocol):
    """A channel over which a peer may push messages; a `StreamChannel` is one."""

    def wait_shared(self, sleeper: Pending) -> None:
        """See `PushListener.wait`."""
        ...

    def read_shared(self, others: Sequence[Any], sleeper: Pending) -> None:
        """See `PushListener.wait_with`."""
        ...

    def spin_shared(self, sleeper: Pending) -> None:
        """See `PushListener.spin_wait`."""
        ...

    def attend(self) -> None:
        """See `PushListener.attend`."""
        ...

    def stop_listening(self) -> None:
        """Notes that one listener less expects messages."""
        ...


class PushListener:
    """One listener on a channel, which has counted it already; `close` it in the end."""

    def __init__(self, channel: PushChannel) -> None:
        self._channel = channel
        self._closed = False

    def wait(self, sleeper: Pending) -> None:
        """Reads until `sleeper` is finished, by what is read or by another thread; it ends with an
        error where the peer is lost."""
        self._channel.wait_shared(sleeper)

    def wait_with(self, others: Sequence[PushListener], sleeper: Pending) -> None:
        """Reads here and where `others` listen, until `sleeper` is finished, by what is read or by
        another thread. It may not be finished when nothing can be read by this thread any more:
        then others do."""
        self._channel.read_shared([other._channel for other in others], sleeper)

    def spin_wait(self, sleeper: Pending) -> None:
        """Like `wait`, but returns instead of going to sleep; `sleeper` may not be finished
        then."""
        self._channel.spin_shared(sleeper)

    def attend(self) -> None:
        """Has the pool's reader read what comes, as soon as it comes."""
        self._channel.attend()

    def close(self) -> None:
        """Listens no more; harmless when repeated."""
        if not self._closed:
            self._closed = True
            self._channel.stop_listening()
