"""The seam to the outside: streams of bytes between two workers, and waiting for many of them.

Everything above sees only these protocols; `stream` (unix and TCP sockets) and `memory` (the
twin for tests) implement them. A connection knows no messages: it carries what `send` is given,
in order, or fails. The one liberty the twin takes is to treat each `send` as one frame, which it
may drop, delay or repeat on purpose.

*One sender and one receiver at a time*: callers hold a lock per direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lockstitch.memory.host_copies import Filled
    from lockstitch.memory.leases import Loan, SegmentLease

Buffer = bytes | bytearray | memoryview


class Pollable(Protocol):
    """Something a `Poller` can watch: a connection or a listener."""

    def close(self) -> None:
        """Ends it; harmless when repeated. A receiver blocked in it returns 0."""
        ...


RemainingTime = Callable[[], float]
"""For how many more seconds a sender waits for room; at 0 it has none left."""


class SendTimeoutError(TimeoutError):
    """The time of a sender is over. `is_begun`: a part of its message had left already."""

    is_begun = False

    def __init__(self, peer: str) -> None:
        super().__init__(f"{peer} has taken in nothing for as long as the sender waits")


Seal = Callable[[int, Sequence[Buffer]], Sequence[Buffer]]
"""Makes of a message's place in the stream, in bytes, and its buffers what is sent instead."""


class Connection(Pollable, Protocol):
    """An ordered stream of bytes to one worker."""

    @property
    def is_exposed(self) -> bool:
        """Whether others than its two ends could change what is on its way."""
        ...

    def seal(self, seal: Seal) -> None:
        """From now on every `send` carries what `seal` makes of it; for exposed ones."""
        ...

    @property
    def peer(self) -> str:
        """The other end's address, for messages to people."""
        ...

    @property
    def progress(self) -> int:
        """A number that changes whenever a part of a message has left for which there was no room
        at first."""
        ...

    def send(
        self, buffers: Sequence[Buffer], *, remaining_time: RemainingTime | None = None
    ) -> None:
        """Sends all of `buffers`, blocking while the peer is slow.

        Raises `ConnectionError` when the peer is gone, `SendTimeoutError` when its `remaining_time`
        is over (None: never). If a part had left by then, the connection keeps a copy of the rest,
        which leaves before anything else: with the next `send`, which may be one of nothing.

        An interrupt (Ctrl-C) arriving meanwhile is raised only when the stream is whole: either
        everything went out, or nothing of it (the interrupt might as well have come before the
        call), or the connection is closed.
        """
        ...

    def receive_into(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None
    ) -> None:
        """Waits for bytes, puts at most `len(view)` of them into `view`, appends their number.

        Appends 0 at the end of the stream. `timeout_seconds` None waits for ever, 0 not at all.
        Raises `BlockingIOError` when the time is over and nothing came, `ConnectionError` when the
        peer vanished. The number is *appended*, in the same C call that took the bytes, so that an
        interrupt can never come between them and desynchronise the stream.
        """
        ...

    def has_left_over(self) -> bool:
        """Whether something can be received of which nothing is to be seen for one who sleeps on
        the connection. Ask before that; what comes later will be seen."""
        ...

    def has_room(self, timeout_seconds: float) -> bool:
        """Whether a short message can be sent now, or within that time, without waiting."""
        ...

    def signs_of_life(self) -> tuple[int, ...]:
        """What can be seen of the other end without its answering, for whoever judges whether it
        lives: numbers that differ from those of before if it has done something."""
        ...

    def bound_silence(self, seconds: float) -> None:
        """Has the system end the connection, on which then everything fails, when the other end's
        host has taken in nothing for so long that was sent; nothing, where both ends are on one."""
        ...

    def end_sending(self) -> None:
        """Sends no more, which the other end sees; what that has sent can still be received."""
        ...

    def lend(self, nbytes: int, filled: Filled | None = None) -> Loan | None:
        """Memory for `nbytes` that the peer will see without a copy, or what is `filled`
        for several already; None where there is none, or the stream is the quicker way."""
        ...

    def window(self, number: int) -> tuple[Any, SegmentLease]:
        """The memory that the peer has lent under this number, as a writable buffer, and the lease,
        which ends when nothing refers to the buffer any more. Raises `ConnectionError` when it has
        lent none."""
        ...


class Listener(Pollable, Protocol):
    """Accepts connections at `address`."""

    @property
    def address(self) -> str: ...

    def accept(self) -> Connection | None:
        """One waiting connection, or None when there is none (it never blocks)."""
        ...


class Poller(Protocol):
    """Waits for any of many pollables to have something to read. Each is watched *once* per arm."""

    def add(self, pollable: Pollable) -> None:
        """Begins to watch, unarmed."""
        ...

    def arm(self, pollable: Pollable) -> None:
        """Asks to be told once when `pollable` has something to read (at once if it has now)."""
        ...

    def watch_end(self, connection: Connection) -> None:
        """Asks to be told once when the other end is gone, but not when there is something to read:
        for a connection that somebody else may be reading. Replaces `arm`, as `arm` replaces it."""
        ...

    def remove(self, pollable: Pollable) -> None:
        """Forgets it; harmless when unknown."""
        ...

    def wait(self, timeout_seconds: float | None) -> Sequence[Pollable]:
        """Blocks until something armed is readable, `wake` is called, or the time is over.
        What is returned is disarmed. Only one thread waits at a time."""
        ...

    def has_ready(self) -> bool:
        """Whether `wait` would return something now, or is about to; any thread may ask."""
        ...

    def wake(self) -> None:
        """Makes the current, or else the next, `wait` return."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """Makes listeners, connections and pollers of one kind."""

    def listen(self, address: str | None = None) -> Listener:
        """Listens at `address`, or at a fresh one of the transport's choice."""
        ...

    def connect(self, address: str, timeout_seconds: float) -> Connection:
        """Connects to a listener; `ConnectionError` or `TimeoutError` says why not."""
        ...

    def poller(self) -> Poller: ...

    def close(self) -> None:
        """Removes whatever listening left behind (socket files, directories)."""
        ...
