"""Who has connected to this worker and has not yet proved to be of this job (`link.door`).

The pool's reader reads what they say, as it comes, and never waits for any of them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lockstitch.link.door import Door, Guest
from lockstitch.link.handshake import ListenerHandshake

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerInfo
    from lockstitch.link.greetings import Hello
    from lockstitch.link.handshake import SessionKeys
    from lockstitch.runtime.core import Core
    from lockstitch.transport.base import Connection

    LetIn = Callable[[WorkerInfo, Connection, SessionKeys | None, bytes], None]


class PendingHandshakes:
    """The callers of one agent whose handshake is under way. `judge(hello)` says why a caller of
    this job cannot be served, or nothing; `let_in(caller, connection, keys, welcome)` takes one
    that has proved itself."""

    def __init__(self, core: Core, judge: Callable[[Hello], str], let_in: LetIn) -> None:
        options = core.options
        self.core = core
        self.judge = judge
        self.let_in = let_in
        self._door: Door[PendingHandshake] = Door(
            core.clock,
            options.unproved_connections,
            options.handshake_seconds,
            PendingHandshake.close,
        )
        self._lock = threading.Lock()
        self._looks = False

    def admit(self, connection: Connection) -> None:
        """Somebody has connected."""
        pending = PendingHandshake(self, self._door, connection)
        if self._door.admit(pending):
            pending.begin()
            self._look_later()

    def make_room(self) -> None:
        """See `Door.make_room`."""
        self._door.make_room()

    def refused(self) -> dict[str, int]:
        """Returns how many callers were turned away, by reason."""
        return self._door.refused()

    def __len__(self) -> int:
        return len(self._door)

    def close(self) -> None:
        """Turns all away, and whoever comes later."""
        self._door.close()

    def _look_later(self) -> None:
        """One look is planned at a time, however many come."""
        seconds = self._door.seconds_to_next()
        with self._lock:
            if self._looks or seconds is None:
                return
            self._looks = True
        self.core.call_later(seconds, self._look)

    def _look(self) -> None:
        with self._lock:
            self._looks = False
        self._door.pass_time()
        self._look_later()


class PendingHandshake:
    """One caller whose handshake is under way; a source of the pool."""

    def __init__(
        self,
        pending_handshakes: PendingHandshakes,
        door: Door[PendingHandshake],
        connection: Connection,
    ) -> None:
        core = pending_handshakes.core
        self._let_in = pending_handshakes.let_in
        self._door = door
        self._pool = core.thread_pool
        self._connection = connection
        handshake = ListenerHandshake(core.info, core.options.secret, pending_handshakes.judge)
        self._guest = Guest(connection, handshake)

    def begin(self) -> None:
        """Lets the thread pool listen to it."""
        self._pool.watch(self._connection, self)
        self._pool.arm(self._connection)

    def serve(self) -> None:
        """Takes in what it has said so far."""
        refusal = self._guest.listen()
        if refusal is None:
            self._pool.arm(self._connection)
        elif refusal:
            self._door.turn_away(self, refusal)
        elif self._door.let_in(self):
            self._come_in()

    def _come_in(self) -> None:
        handshake = self._guest.handshake
        assert handshake.caller is not None
        self._let_in(handshake.caller, self._connection, handshake.keys, self._guest.welcome)

    def leave(self) -> None:
        """The reader never leaves in the middle of `serve`."""

    def close(self) -> None:
        """Turns the caller away."""
        self._pool.forget(self._connection)
        self._connection.close()
