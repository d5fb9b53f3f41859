"""The way back: hearing from a worker on the connection on which we call it.

A control message usually travels on its sender's own connection and is read by the receiver's crew;
a thread that waits for what it brings must then be woken. Where two workers speak to and fro (a
backward pass), the one that began may *listen* instead: it says so, the other sends what it has for
it where replies go, and the thread that waits reads for itself, as it does for the reply to a call.

Whoever listens need not read: while nobody does, the crew's leader sees to it a moment later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lockstitch.runtime.pending import Pending


class Listening(Protocol):
    """A channel on which one may listen; a `StreamChannel` is one."""

    listeners: int

    def listen(self, sleeper: Pending) -> None:
        """See `WayBack.wait`."""
        ...

    def glance(self, sleeper: Pending) -> None:
        """See `WayBack.glance`."""
        ...

    def attend(self) -> None:
        """See `WayBack.attend`."""
        ...


class WayBack:
    """One listener on a channel; `close` it in the end. See the module."""

    def __init__(self, channel: Listening) -> None:
        self._channel = channel
        self._closed = False
        channel.listeners += 1

    def wait(self, sleeper: Pending) -> None:
        """Reads until `sleeper` is finished, by what is read or by another thread; it ends with an
        error where the peer is lost."""
        self._channel.listen(sleeper)

    def glance(self, sleeper: Pending) -> None:
        """Like `wait`, for as long as one spins; `sleeper` may not be finished then."""
        self._channel.glance(sleeper)

    def attend(self) -> None:
        """Has the crew's leader read what comes, as soon as it comes."""
        self._channel.attend()

    def close(self) -> None:
        """Listens no more; harmless when repeated."""
        if not self._closed:
            self._closed = True
            self._channel.listeners -= 1
