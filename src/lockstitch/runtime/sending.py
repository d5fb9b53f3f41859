"""The sending end of a connection on which many threads send: frame after frame, each whole.

A sender waits no longer than its `RemainingTime`. Then it goes, and leaves its frame behind: all of
it, or what the connection keeps of it. What was left behind leaves before anything that is sent
later, by a thread of the pool or by the next who sends. So no frame is torn, and none is lost: what
the making of it has begun (references on their way, numbers of functions) comes to an end.

Hence whoever is about to make a request and will wait for its answer looks first whether something
is left behind (`is_behind`), and waits: a peer that takes in nothing costs one frame for each
thread that was about to send, not one for each request. Who has better things to do than to wait
may add to what is left behind, once the peer has stood still for a moment and while there is room
(`may_add`); for one that is slow but takes in, everybody waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from lockstitch.interrupts import if_free, when_free
from lockstitch.transport.base import SendTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.transport.base import Buffer, Connection, RemainingTime

_LOOK_SECONDS = 0.1
STILL_SECONDS: Final = 0.1
"""A peer that has taken in nothing for so long passes for one that will not soon."""


class Stillness:
    """For how long the peer has taken in nothing, as far as those have seen who looked."""

    def __init__(self, sending: Sending) -> None:
        self._sending = sending
        self._progress = sending.progress
        self._since = time.monotonic()

    def seconds(self) -> float:
        """Looks; 0 if it has taken in something since the last look."""
        now, progress = time.monotonic(), self._sending.progress
        if progress != self._progress:
            self._progress, self._since = progress, now
        return now - self._since


class Sending:
    """See the module. `spawn` runs a task on another thread; `lost` hears of a connection that
    ends while nobody waits for it; `most_bytes` may be left behind by those who will not wait."""

    def __init__(
        self,
        connection: Connection,
        spawn: Callable[[Callable[[], None]], None],
        lost: Callable[[BaseException], None],
        most_bytes: int,
    ) -> None:
        self._connection = connection
        self._spawn = spawn
        self._lost = lost
        self._lock = threading.Lock()
        self._clearing = threading.Lock()
        self._left_behind: deque[bytes] = deque()
        self._added_bytes = 0
        self._removed_bytes = 0
        self._most_bytes = most_bytes
        self._caught_up = 0
        self._stillness = Stillness(self)
        self._times = 0
        self._clear = threading.Event()
        self._clear.set()
        self.is_behind = False
        """Whether something was left behind, and has not left yet."""

    def send(self, buffers: Sequence[Buffer], remaining_time: RemainingTime | None = None) -> None:
        """Sends a frame. Raises `ConnectionError`, and `SendTimeoutError` when its
        `remaining_time` is over: then the frame will leave later."""
        if remaining_time is None:
            with self._lock:
                if self._left_behind:
                    self._send_left_behind(None)
                self._connection.send(buffers)
            return
        has_sent = if_free(self._lock, self._send_or_leave, buffers, remaining_time)
        while not has_sent:
            seconds = min(_LOOK_SECONDS, remaining_time())
            if seconds <= 0:
                self._leave_behind(b"".join(buffers))
                raise SendTimeoutError(self._connection.peer)
            has_sent = when_free(self._lock, seconds, self._send_or_leave, buffers, remaining_time)

    def _send_or_leave(self, buffers: Sequence[Buffer], remaining_time: RemainingTime) -> None:
        """Sends in this thread's turn, or leaves the frame behind when the time is over."""
        try:
            if self._left_behind:
                self._send_left_behind(remaining_time)
            self._connection.send(buffers, remaining_time=remaining_time)
        except SendTimeoutError as error:
            self._leave_behind(None if error.is_begun else b"".join(buffers))
            raise

    @property
    def progress(self) -> int:
        """A number that changes whenever the peer has taken in some of what waits for it."""
        return self._connection.progress + self._caught_up

    def stillness(self) -> Stillness:
        """Returns for how long the peer takes in nothing, seen from now on."""
        return self._stillness if self.is_behind else Stillness(self)

    def may_add(self) -> bool:
        """Whether one who does not wait for an answer may add to what is left behind."""
        is_still = self._stillness.seconds() >= STILL_SECONDS
        return is_still and self._added_bytes - self._removed_bytes < self._most_bytes

    def wait_until_clear(self, seconds: float) -> None:
        """Returns when nothing is left behind, and after that time in any case."""
        self._clear.wait(seconds)

    def say_at_last(self, buffers: Sequence[Buffer], timeout_seconds: float) -> None:
        """Sends a frame, or does not where the peer takes in nothing any more."""
        if self._lock.acquire(timeout=timeout_seconds):
            try:
                if not self.is_behind and self._connection.has_room(timeout_seconds):
                    self._connection.send(buffers)
            finally:
                self._lock.release()

    def _send_left_behind(self, remaining_time: RemainingTime | None) -> None:
        while self._left_behind:
            frame = self._left_behind.popleft()
            try:
                self._connection.send([frame], remaining_time=remaining_time)
            except SendTimeoutError as error:
                if error.is_begun:
                    self._removed_bytes += len(frame)
                else:
                    self._left_behind.appendleft(frame)
                raise SendTimeoutError(self._connection.peer) from error
            except ConnectionError:
                raise
            except BaseException:  # an interrupt: nobody can tell whether the frame has left
                self._connection.close()
                raise
            self._removed_bytes += len(frame)
            self._caught_up += 1

    def _leave_behind(self, frame: bytes | None) -> None:
        """None: the connection keeps what is left of it."""
        with self._clearing:
            self._times += 1
            if frame is not None:
                self._left_behind.append(frame)
                self._added_bytes += len(frame)
            if self.is_behind:
                return
            self._stillness = Stillness(self)
            self.is_behind = True
            self._clear.clear()
        self._spawn(self._clear_up)

    def _clear_up(self) -> None:
        """Sends what is left behind, however long that takes."""
        try:
            while self.is_behind:
                times = self._times
                self.send([])
                with self._clearing:
                    if self._times == times:
                        self.is_behind = False
        except ConnectionError as error:
            self._left_behind.clear()
            self.is_behind = False
            self._lost(error)
        finally:
            self._clear.set()
