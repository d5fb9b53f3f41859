"""Streams inside one process: queues of bytes that behave as sockets do.

Reads are partial, a slow reader holds its writer up, an ended stream is read to its end, and time
is the given clock's. A frame that is still on its way (delayed, held back) needs no thread to bring
it: it lies in the pipe with the time at which it is due, and whoever waits for the pipe waits until
then.

Events here are only hints to look again: clear, look, wait. What is true stands under the locks.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from lockstitch.clock import earliest
from lockstitch.transport.base import SendTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.clock import Clock
    from lockstitch.memory.host_copies import Filled
    from lockstitch.memory.leases import Loan, SegmentLease
    from lockstitch.transport.base import (
        Buffer,
        Connection,
        Pollable,
        RemainingTime,
        Seal,
    )

ALREADY = -math.inf
_LOOK_SECONDS = 0.1


class Pipe:
    """One direction of a connection. `taken` is told of each frame that was read to its end."""

    def __init__(
        self, clock: Clock, capacity_bytes: int, taken: Callable[[bytes], None] | None = None
    ) -> None:
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._taken = taken
        self._lock = threading.Lock()
        self._arrived: deque[memoryview] = deque()
        self._arrived_bytes = 0
        self._due: list[tuple[float, int, bytes]] = []  # a heap: when, order of sending, frame
        self._held: list[tuple[int, bytes]] = []  # behind how many further frames, frame
        self._order = itertools.count()
        self._ended = False
        self._room = threading.Event()
        self._watchers: set[threading.Event] = set()

    def put(
        self,
        frame: bytes,
        after_seconds: float = 0.0,
        behind: int = 0,
        remaining_time: RemainingTime | None = None,
    ) -> None:
        """Sends a frame; it arrives after that time, or behind that many later frames.

        Blocks while too much lies unread. Raises `BrokenPipeError` when the pipe has ended,
        `SendTimeoutError` when `remaining_time` is over.
        """
        while not self._try_put(frame, after_seconds, behind):
            seconds = None if remaining_time is None else min(_LOOK_SECONDS, remaining_time())
            if seconds is not None and seconds <= 0:
                raise SendTimeoutError("the other end")
            self._clock.wait(self._room, seconds)

    def take(self, view: memoryview) -> int | None:
        """Moves bytes into `view`; 0 at the end of the stream, None when there are none yet."""
        with self._lock:
            self._bring_what_is_due()
            if not self._arrived:
                return 0 if self._ended else None
            first = self._arrived[0]
            count = min(len(view), len(first))
            view[:count] = first[:count]
            if count < len(first):
                self._arrived[0] = first[count:]
            else:
                self._arrived.popleft()
                if self._taken is not None:
                    self._taken(cast("bytes", first.obj))
            self._arrived_bytes -= count
            self._room.set()
            return count

    def readable_at(self) -> float | None:
        """When there is something to read, as far as is known now."""
        with self._lock:
            if self._arrived or self._ended:
                return ALREADY
            return self._due[0][0] if self._due else None

    @property
    def has_room(self) -> bool:
        """Whether a frame can be put in without waiting, or would be refused."""
        return self._ended or self._arrived_bytes < self._capacity_bytes

    @property
    def is_ended(self) -> bool:
        """Whether nothing more can arrive."""
        return self._ended

    def end(self) -> None:
        """Ends the stream. What has arrived can still be read; what is on its way is lost."""
        with self._lock:
            self._ended = True
            self._due.clear()
            self._held.clear()
            self._room.set()
            self._tell_watchers()

    def watch(self, changed: threading.Event) -> None:
        """Has `changed` set whenever something comes, or is on its way, or the stream ends."""
        with self._lock:
            self._watchers.add(changed)

    def unwatch(self, changed: threading.Event) -> None:
        with self._lock:
            self._watchers.discard(changed)

    def _try_put(self, frame: bytes, after_seconds: float, behind: int) -> bool:
        with self._lock:
            if self._ended:
                raise BrokenPipeError(errno.EPIPE, "the connection is closed")
            if self._arrived_bytes >= self._capacity_bytes:
                self._room.clear()
                return False
            if behind:
                self._held.append((behind, frame))
                return True
            self._send(frame, after_seconds)
            held, self._held = self._held, []
            for remaining, late in held:
                if remaining == 1:
                    self._send(late, after_seconds)
                else:
                    self._held.append((remaining - 1, late))
            return True

    def _send(self, frame: bytes, after_seconds: float) -> None:
        if after_seconds > 0:
            due = self._clock.now() + after_seconds
            heapq.heappush(self._due, (due, next(self._order), frame))
        else:
            self._bring_what_is_due()
            self._bring(frame)
        self._tell_watchers()

    def _bring_what_is_due(self) -> None:
        now = self._clock.now()
        while self._due and self._due[0][0] <= now:
            self._bring(heapq.heappop(self._due)[2])

    def _bring(self, frame: bytes) -> None:
        if frame:
            self._arrived.append(memoryview(frame))
            self._arrived_bytes += len(frame)

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.set()


class MemoryEnd(Protocol):
    """What a `MemoryPoller` can watch."""

    def close(self) -> None: ...

    def readable_at(self) -> float | None:
        """When there is something to read, as far as is known now."""
        ...

    def watch(self, changed: threading.Event) -> None:
        """Has `changed` set whenever `readable_at` may answer differently."""
        ...

    def unwatch(self, changed: threading.Event) -> None: ...


class MemoryConnection:
    """One end of a pair of pipes as a `Connection`.

    `carry` takes each frame that this end sends, and puts it into the outgoing pipe or does not.
    """

    is_exposed = False
    progress = 0
    """A message leaves as a whole, or not at all."""

    def __init__(
        self,
        clock: Clock,
        peer: str,
        pipes: tuple[Pipe, Pipe],
        carry: Callable[[bytes, Pipe, RemainingTime | None], None],
    ) -> None:
        self._clock = clock
        self.peer = peer
        self._incoming, self._outgoing = pipes
        self._carry = carry
        self._changed = threading.Event()
        self._incoming.watch(self._changed)

    def __repr__(self) -> str:
        return f"<MemoryConnection to {self.peer!r}>"

    def send(
        self, buffers: Sequence[Buffer], *, remaining_time: RemainingTime | None = None
    ) -> None:
        """Sends `buffers` as one frame; `ConnectionError` when either end is closed,
        `SendTimeoutError` when `remaining_time` is over: then nothing of it has left."""
        if buffers:
            self._carry(b"".join(buffers), self._outgoing, remaining_time)

    def receive_into(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None
    ) -> None:
        """Waits for bytes; see `Connection.receive_into`."""
        deadline = None if timeout_seconds is None else self._clock.now() + timeout_seconds
        while True:
            self._changed.clear()
            count = self._incoming.take(view)
            if count is not None:
                counts.append(count)
                return
            if deadline is not None and self._clock.now() >= deadline:
                raise BlockingIOError(errno.EAGAIN, "nothing has come")
            self._clock.wait_until(self._changed, earliest(deadline, self._incoming.readable_at()))

    def seal(self, seal: Seal) -> NoReturn:
        """Nobody reaches into a process: there is nothing to seal."""
        del seal
        raise ValueError(f"{self!r} is not exposed")

    def has_left_over(self) -> bool:
        """False, since its poller knows of everything."""
        return False

    def has_room(self, timeout_seconds: float) -> bool:
        """See `Connection.has_room`; it does not wait."""
        del timeout_seconds
        return self._outgoing.has_room

    def signs_of_life(self) -> tuple[int, ...]:
        """Nothing: what is sent leaves as a whole."""
        return ()

    def bound_silence(self, seconds: float) -> None:
        """Nothing: both ends are in one process."""

    def end_sending(self) -> None:
        """See `Connection.end_sending`."""
        self._outgoing.end()

    def lend(self, nbytes: int, filled: Filled | None = None) -> Loan | None:  # noqa: ARG002
        """None: a script may lose, delay and repeat frames only if all is in them."""
        return None

    def window(self, number: int) -> tuple[Any, SegmentLease]:
        """Raises `ConnectionError`: nothing can have been lent."""
        raise ConnectionError(f"{self.peer} names a segment, {number}, where there can be none")

    def close(self) -> None:
        """Ends both directions; harmless when repeated."""
        self._incoming.end()
        self._outgoing.end()

    def sends_by(self, pipe: Pipe) -> bool:
        """Whether `pipe` is what this end puts its frames into."""
        return self._outgoing is pipe

    def readable_at(self) -> float | None:
        return self._incoming.readable_at()

    @property
    def is_ended(self) -> bool:
        """Whether the other end is gone, or this one."""
        return self._incoming.is_ended

    def watch(self, changed: threading.Event) -> None:
        self._incoming.watch(changed)

    def unwatch(self, changed: threading.Event) -> None:
        self._incoming.unwatch(changed)


class MemoryPoller:
    """A `Poller` over connections and listeners of a memory network."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._armed: dict[Pollable, bool] = {}  # every watched one
        self._end_watched: set[MemoryConnection] = set()
        self._is_woken = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryPoller · {len(self._armed)} watched>"

    def add(self, pollable: Pollable) -> None:
        """Begins to watch, unarmed."""
        with self._lock:
            self._armed.setdefault(pollable, False)
        _memory_end(pollable).watch(self._changed)

    def arm(self, pollable: Pollable) -> None:
        """Asks to be told once when it is readable; nothing happens if it has been removed."""
        with self._lock:
            if pollable in self._armed:
                self._armed[pollable] = True
                self._end_watched.discard(cast("MemoryConnection", pollable))
        self._changed.set()

    def watch_end(self, connection: Connection) -> None:
        """Asks to be told once when the other end is gone."""
        with self._lock:
            if connection in self._armed:
                self._armed[connection] = False
                self._end_watched.add(cast("MemoryConnection", connection))
        self._changed.set()

    def remove(self, pollable: Pollable) -> None:
        """Forgets it; harmless when unknown."""
        with self._lock:
            self._armed.pop(pollable, None)
            self._end_watched.discard(cast("MemoryConnection", pollable))
        _memory_end(pollable).unwatch(self._changed)

    def wait(self, timeout_seconds: float | None) -> Sequence[Pollable]:
        """Blocks until something armed is readable, `wake` is called, or the time is over."""
        deadline = None if timeout_seconds is None else self._clock.now() + timeout_seconds
        while True:
            self._changed.clear()
            ready, next_due = self._look()
            is_over = deadline is not None and self._clock.now() >= deadline
            if ready or self._take_wake() or is_over:
                return ready
            self._clock.wait_until(self._changed, earliest(deadline, next_due))

    def has_ready(self) -> bool:
        """Whether something armed is readable now, or `wake` was called."""
        with self._lock:
            armed = [_memory_end(each) for each, is_armed in self._armed.items() if is_armed]
        now = self._clock.now()
        due = [at for each in armed if (at := each.readable_at()) is not None]
        return self._is_woken or any(at <= now for at in due)

    def wake(self) -> None:
        """Makes the current, or else the next, `wait` return."""
        self._is_woken = True
        self._changed.set()

    def close(self) -> None:
        """Ends it, and a `wait` in progress."""
        self._closed = True
        for pollable in list(self._armed):
            self.remove(pollable)
        self.wake()

    def _take_wake(self) -> bool:
        was_woken, self._is_woken = self._is_woken, False
        return was_woken or self._closed

    def _look(self) -> tuple[list[Pollable], float | None]:
        """Disarms and returns what is readable; else says when something may become so."""
        with self._lock:
            now = self._clock.now()
            ready: list[Pollable] = [each for each in self._end_watched if each.is_ended]
            self._end_watched.difference_update(cast("list[MemoryConnection]", ready))
            next_due = None
            for pollable in [each for each, is_armed in self._armed.items() if is_armed]:
                at = _memory_end(pollable).readable_at()
                if at is not None and at <= now:
                    ready.append(pollable)
                    self._armed[pollable] = False
                elif at is not None:
                    next_due = at if next_due is None else min(next_due, at)
            return ready, next_due


def _memory_end(pollable: Pollable) -> MemoryEnd:
    if not hasattr(pollable, "readable_at"):
        raise TypeError(f"{pollable!r} is not in memory")
    return pollable  # type: ignore[return-value]
