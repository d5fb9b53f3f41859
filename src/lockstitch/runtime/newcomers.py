"""Who has connected and has not yet proved to be of this job: until then it is nobody's peer.

The crew's leader reads what they say, as it comes, and never waits for any of them. They are few: a
limit, beyond which the newest pushes the oldest out, since who has the secret is through within a
few milliseconds. And their time is short. What goes wrong with one is counted and concerns nobody
else: port scanners, garbage, those who connect and say nothing.

Where this process itself was stopped for a while, all begin anew, as in `runtime.liveness`.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from lockstitch.errors import HandshakeError
from lockstitch.transport.greetings import GreetingReader
from lockstitch.transport.handshake import ListenerHandshake

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerInfo
    from lockstitch.runtime.core import Core
    from lockstitch.transport.base import Connection
    from lockstitch.transport.greetings import Hello
    from lockstitch.transport.handshake import SessionKeys

    LetIn = Callable[[WorkerInfo, Connection, SessionKeys | None, bytes], None]

GONE: Final = "gone"
"""It closed the connection in the middle, or before it said anything."""
TOO_SLOW: Final = "too slow"
PUSHED_OUT: Final = "pushed out"
# Whoever has the secret is through long before.
_USUAL_SECONDS: Final = 1.0


class Newcomers:
    """Those of one agent. `judge(hello)` says why a caller of this job cannot be served, or
    nothing; `let_in(caller, connection, keys, welcome)` takes one that has proved itself."""

    def __init__(self, core: Core, judge: Callable[[Hello], str], let_in: LetIn) -> None:
        self.core = core
        self.judge = judge
        self.let_in = let_in
        self._lock = threading.Lock()
        self._newcomers: dict[Newcomer, float] = {}  # the oldest first, with their time's end
        self._refused: Counter[str] = Counter()
        self._looks = False
        self._due = 0.0
        self._closed = False

    def admit(self, connection: Connection) -> None:
        """Somebody has connected."""
        options = self.core.options
        newcomer = Newcomer(self, connection)
        oldest = None
        with self._lock:
            if len(self._newcomers) >= options.unproved_connections:
                oldest = next(iter(self._newcomers))
            self._newcomers[newcomer] = self.core.clock.now() + options.handshake_seconds
        if oldest is not None:
            oldest.end(PUSHED_OUT)
        if self._closed:
            newcomer.end(GONE)
            return
        newcomer.begin()
        self._look_later(options.handshake_seconds)

    def make_room(self) -> None:
        """This process can open no more files: the one that has been here longest goes, unless it
        may be about to prove itself."""
        latest = self.core.clock.now() + self.core.options.handshake_seconds - _USUAL_SECONDS
        with self._lock:
            oldest, end = next(iter(self._newcomers.items()), (None, 0.0))
        if oldest is not None and end < latest:
            oldest.end(PUSHED_OUT)

    def dismiss(self, newcomer: Newcomer, reason: str = "") -> bool:
        """It is none any more: for that reason, or because it has come in. False if it was none
        before."""
        with self._lock:
            is_known = self._newcomers.pop(newcomer, None) is not None
            if is_known and reason:
                self._refused[reason] += 1
            return is_known

    def refused(self) -> dict[str, int]:
        """How many were turned away, by reason."""
        with self._lock:
            return dict(self._refused)

    def __len__(self) -> int:
        return len(self._newcomers)

    def close(self) -> None:
        """Turns all away, and whoever comes later."""
        self._closed = True
        for newcomer in list(self._newcomers):
            newcomer.end(GONE)

    def _look_later(self, seconds: float) -> None:
        """One look is planned at a time, however many come."""
        with self._lock:
            if self._looks or not self._newcomers:
                return
            self._looks = True
            self._due = self.core.clock.now() + seconds
        self.core.call_later(seconds, self._look)

    def _look(self) -> None:
        now = self.core.clock.now()
        with self._lock:
            self._looks = False
            if now - self._due > _USUAL_SECONDS:
                end = now + self.core.options.handshake_seconds
                self._newcomers = dict.fromkeys(self._newcomers, end)
            late = [each for each, end in self._newcomers.items() if end <= now]
            first = next((end for end in self._newcomers.values() if end > now), now)
        for newcomer in late:
            newcomer.end(TOO_SLOW)
        self._look_later(first - now)


class Newcomer:
    """One of them; a source of the crew."""

    def __init__(self, newcomers: Newcomers, connection: Connection) -> None:
        core = newcomers.core
        self._newcomers = newcomers
        self._crew = core.crew
        self._connection = connection
        self._reader = GreetingReader()
        self._welcome = b""
        self._handshake = ListenerHandshake(core.info, core.options.secret, newcomers.judge)

    def begin(self) -> None:
        """Lets the crew listen to it."""
        self._crew.watch(self._connection, self)
        self._crew.arm(self._connection)

    def serve(self) -> None:
        """Takes in what it has said so far."""
        try:
            while not self._handshake.is_over:
                self._listen()
        except BlockingIOError:
            self._crew.arm(self._connection)
        except HandshakeError as error:
            self.end(error.reason)
        except OSError:
            self.end(GONE)
        else:
            self._conclude()

    def _listen(self) -> None:
        counts: list[int] = []
        self._connection.receive_into(self._reader.space(), counts, 0)
        if not counts[0]:
            raise ConnectionResetError("it closed the connection")
        greeting = self._reader.absorb(counts[0])
        if greeting is None:
            return
        answer = self._handshake.take(greeting)
        if self._handshake.caller is None:
            self._connection.send([answer])
        else:
            self._welcome = answer

    def _conclude(self) -> None:
        handshake = self._handshake
        if handshake.caller is None:
            self.end(handshake.refused.reason if handshake.refused is not None else GONE)
        elif self._newcomers.dismiss(self):
            self._newcomers.let_in(
                handshake.caller, self._connection, handshake.keys, self._welcome
            )

    def leave(self) -> None:
        """The leader never leaves in the middle of `serve`."""

    def end(self, reason: str) -> None:
        """It is turned away; harmless when repeated."""
        if self._newcomers.dismiss(self, reason):
            self._crew.forget(self._connection)
            self._connection.close()
