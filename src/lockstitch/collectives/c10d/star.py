"""The connections between rank 0 and the others: whole messages both ways. (Where a process set has
a star of its own, its first rank stands where rank 0 stands here.)

On rank 0 one thread reads all connections and asks the hub; elsewhere one thread reads the one.
Whoever submits sends for himself. Rank 0 talks to its own hub without a connection. What goes over
one is in `line`.

A connection on which anything has failed is over, whichever end and direction it was: what was to
be said then is lost, and nobody could know. Its end reaches the thread that reads it on both sides,
and from there the hub, which tells all others. So does a thread of ours that cannot go on.

A rank proves with its first message that it belongs here. Where the job has a secret, every message
after that ends with a *seal*: a keyed hash of the message and its number, by a key of its own for
each session, rank and direction. So what somebody on the way has changed, left out, repeated or put
in ends the connection before it is parsed. Seals hide nothing: names and shapes can be read.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives.c10d import messages
from lockstitch.collectives.c10d.hub import Note
from lockstitch.collectives.c10d.line import Line, Password
from lockstitch.collectives.c10d.messages import Hello, Leave, Lost, Message, Welcome
from lockstitch.collectives.requests import ranks_in_words
from lockstitch.errors import CollectiveError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockstitch.clock import Clock
    from lockstitch.collectives.c10d.hub import Hub
    from lockstitch.transport import Listener, Pollable, Transport

_MOST_STRANGERS = 128
# Where nobody can be let in, one looks again after so long.
_PAUSE_SECONDS = 0.1
_LONGEST_HELLO = 256


class Spoke:
    """The end of every rank but 0."""

    def __init__(
        self,
        rank: int,
        line: Line,
        hear: Callable[[Message], None],
        password: Password,
        centre: int = 0,
    ) -> None:
        self._rank = rank
        self._centre = centre
        self._line = line
        self._hear = hear
        self._is_closed = False
        self._failure: Exception | None = None
        """Of a send, which the reading thread tells."""
        self._thread = threading.Thread(target=self._run, name=f"rank {rank} orders", daemon=True)
        self.bytes_sent = 0
        try:
            line.send(Hello(rank, password.of(rank)))
            seals = password.seals(rank)
            if seals is not None:
                line.protect(*seals)
            self._thread.start()
        except BaseException as error:
            line.close()
            if isinstance(error, ConnectionError):
                raise CollectiveError(f"rank {centre} could not be greeted: {error}") from error
            raise

    def tell(self, message: Message) -> None:
        """Says something to rank 0. Where that fails the session ends, by the thread that reads."""
        self.bytes_sent += len(messages.encode(message)) + self._line.seal_bytes
        try:
            self._line.send(message)
        except ConnectionError as error:
            self._failure = self._failure or error
            self._line.close()

    def close(self) -> None:
        self.tell(Leave())
        self._is_closed = True
        self._line.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                # Nothing was there, as may be told of a wait without an end, too.
                with contextlib.suppress(BlockingIOError):
                    for message in self._line.read():
                        self._is_closed |= isinstance(message, Leave)
                        self._hear(message)
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing is read any more
            self._line.close()  # so that rank 0 hears of it, too
            if not self._is_closed:
                self._hear(Lost(self._centre, f"{messages.UNREACHED} ({self._failure or error})"))


class Centre:
    """The end of rank 0, which has the hub. `expected`: who has to say hello within
    `hello_seconds`; when all have they are told `Welcome`, and else that somebody is lost."""

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        hub: Hub,
        transport: Transport,
        listener: Listener,
        hear: Callable[[Message], None],
        password: Password,
        rank: int = 0,
        *,
        expected: Iterable[int] = (),
        hello_seconds: float = 60.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._rank = rank
        self._expected = set(expected)
        self._is_waiting = True
        """For hellos."""
        self._hello_seconds = hello_seconds
        self._clock = clock
        self._deadline = clock.now() + hello_seconds
        self._hub = hub
        self._hear = hear
        self._password = password
        self._transport = transport
        self._listener = listener
        self._poller = transport.poller()
        self._lines: dict[int, Line] = {}
        self._own: SimpleQueue[Message] = SimpleQueue()
        self._strangers: dict[int, Line] = {}
        self._ranks: dict[int, int] = {}
        """Which rank is behind a connection."""
        self._is_full = False
        self._is_closed = False
        self.bytes_sent = 0
        self._thread = threading.Thread(target=self._run, name=f"rank {rank} orders", daemon=True)
        self._thread.start()

    def tell(self, message: Message) -> None:
        """Says something to the hub."""
        self.bytes_sent += len(messages.encode(message))
        self._own.put(message)
        self._poller.wake()

    def close(self) -> None:
        self.tell(Leave())
        self._is_closed = True
        self._poller.wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        words: Message = Leave()
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - whatever it was, no orders come any more
            words = Lost(self._rank, f"could not give orders any more: {error!r}")
        self._end(words)
        if isinstance(words, Lost):
            self._hear(words)

    def _serve(self) -> None:
        self._poller.add(self._listener)
        self._poller.arm(self._listener)
        while True:
            if self._is_waiting:
                self._await_hellos()
            told: list[tuple[int, Message]] = []
            for pollable in self._poller.wait(self._patience()):
                self._look_at(pollable, told)
            if self._is_full:
                self._poller.arm(self._listener)
            while not self._own.empty():
                told.append((self._rank, self._own.get()))
            self._send(self._hub.hear(told))
            if self._is_closed and self._own.empty():
                break

    def _patience(self) -> float | None:
        if self._is_full:
            return _PAUSE_SECONDS
        return max(0.0, self._deadline - self._clock.now()) if self._is_waiting else None

    def _await_hellos(self) -> None:
        """Everybody has come, or the time is over."""
        if not self._expected:
            self._is_waiting = False
            self._send([Note(rank, Welcome()) for rank in (*self._lines, self._rank)])
        elif self._clock.now() >= self._deadline:
            self._is_waiting = False
            words = f"did not come to rank {self._rank} within {self._hello_seconds:g} s"
            first, *others = sorted(self._expected)
            if others:
                words += f", nor did {ranks_in_words(others)}"
            for rank in (first, *others):
                self._send(self._hub.lost(rank, words))

    def _look_at(self, pollable: Pollable, told: list[tuple[int, Message]]) -> None:
        if pollable is self._listener:
            self._let_in()
            return
        line = self._strangers.get(id(pollable)) or self._lines.get(
            self._ranks.get(id(pollable), -1)
        )
        if line is None:  # it was pushed out
            return
        try:
            for message in line.read(0):
                if isinstance(message, Hello):
                    self._greet(line, message)
                elif id(pollable) in self._ranks:
                    told.append((self._ranks[id(pollable)], message))
        except BlockingIOError:
            pass
        except (ConnectionError, ProtocolError) as error:
            self._hang_up(line, error)
            return
        self._poller.arm(pollable)

    def _let_in(self) -> None:
        """Somebody has connected; they wait where this process can open no more files."""
        try:
            connection = self._listener.accept()
        except OSError:
            self._is_full = True
            return
        self._is_full = False
        if connection is not None:
            if len(self._strangers) >= _MOST_STRANGERS:
                self._hang_up(next(iter(self._strangers.values())))
            self._strangers[id(connection)] = Line(connection, _LONGEST_HELLO)
            self._poller.add(connection)
            self._poller.arm(connection)
        self._poller.arm(self._listener)

    def _greet(self, line: Line, hello: Hello) -> None:
        if type(hello.rank) is not int or type(hello.token) is not str:
            return
        expected = self._password.of(hello.rank).encode()
        is_right = hmac.compare_digest(hello.token.encode("utf-8", "replace"), expected)
        if is_right and hello.rank not in self._lines:
            line.most_bytes = messages.MOST_BYTES
            self._strangers.pop(id(line.connection), None)
            self._lines[hello.rank] = line
            self._ranks[id(line.connection)] = hello.rank
            seals = self._password.seals(hello.rank)
            if seals is not None:
                by, to = seals
                line.protect(to, by)
            if hello.rank in self._expected and not self._is_waiting:
                line.send(Lost(hello.rank, "came too late"))
            self._expected.discard(hello.rank)

    def _hang_up(self, line: Line, why: Exception | None = None) -> None:
        self._poller.remove(line.connection)
        self._strangers.pop(id(line.connection), None)
        rank = self._ranks.get(id(line.connection))
        line.close()
        if rank is not None:
            self._lines.pop(rank, None)
            self._send(self._hub.lost(rank, f"{messages.UNREACHED} ({why})"))

    def _send(self, notes: list[Note]) -> None:
        for to, message in notes:
            if to == self._rank:
                self._hear(message)
                continue
            line = self._lines.get(to)
            if line is not None:
                try:
                    line.send(message)
                except ConnectionError as error:
                    self._hang_up(line, error)

    def _end(self, words: Message) -> None:
        for line in self._lines.values():
            with contextlib.suppress(ConnectionError):
                line.send(words)
        for line in [*self._lines.values(), *self._strangers.values()]:
            line.close()
        self._listener.close()
        self._poller.close()
        self._transport.close()


def call_hub(transport: Transport, address: str, timeout_seconds: float, centre: int = 0) -> Line:
    """A line to rank 0."""
    try:
        return Line(transport.connect(address, timeout_seconds))
    except (ConnectionError, TimeoutError) as error:
        raise CollectiveError(f"rank {centre} cannot be reached at {address}: {error}") from error
