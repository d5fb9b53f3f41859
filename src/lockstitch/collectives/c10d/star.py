"""The connections between rank 0 and the others: whole messages both ways. (Where a process set has
a star of its own, its first rank stands where rank 0 stands here.)

On rank 0 one thread reads all connections and asks the hub; elsewhere one thread reads the one.
Whoever submits sends for himself. Rank 0 talks to its own hub without a connection.

A rank proves with its first message that it belongs here. Where the job has a secret, every message
after that ends with a *seal*: a keyed hash of the message and its number, by a key of its own for
each session, rank and direction. So what somebody on the way has changed, left out, repeated or put
in ends the connection before it is parsed. Seals hide nothing: names and shapes can be read.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
from hashlib import blake2b
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from lockstitch.collectives.c10d import messages
from lockstitch.collectives.c10d.messages import Hello, Leave, Lost, Message
from lockstitch.errors import CollectiveError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.collectives.c10d.hub import Hub, Note
    from lockstitch.transport import Connection, Listener, Pollable, Transport
    from lockstitch.trust import Secret

Hear = "Callable[[Message], None]"


_MOST_STRANGERS = 128
# Where nobody can be let in, one looks again after so long.
_PAUSE_SECONDS = 0.1
_LONGEST_HELLO = 256
SEAL_BYTES: Final = 16


class Password:
    """What a rank says to prove that it belongs here: a word that rank 0 has put into the store,
    or, where the job has a secret, what only its secret makes of that."""

    def __init__(self, word: str, secret: Secret | None) -> None:
        self._word = word
        self._key = None if secret is None else secret.derive("reductions", word.encode())

    def of(self, rank: int) -> str:
        """What that rank says."""
        if self._key is None:
            return self._word
        return hmac.digest(self._key, str(rank).encode(), "sha256").hex()

    def seals(self, rank: int) -> tuple[Seal, Seal] | None:
        """Of the messages of that rank, and of those to it; None without a secret."""
        if self._key is None:
            return None
        words = (f"{rank} says", f"{rank} hears")
        by, to = (Seal(hmac.digest(self._key, word.encode(), "sha256")) for word in words)
        return by, to


class Seal:
    """Seals messages in one direction, in their order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def next(self, content: bytes | bytearray) -> bytes:
        """The seal of the next message."""
        self._number += 1
        salt = self._number.to_bytes(16, "big")
        return blake2b(content, digest_size=SEAL_BYTES, key=self._key, salt=salt).digest()


class Line:
    """A connection that carries messages of at most `most_bytes`. One thread reads; any may
    send."""

    def __init__(self, connection: Connection, most_bytes: int = messages.MOST_BYTES) -> None:
        self.connection = connection
        self.most_bytes = most_bytes
        self._sending = threading.Lock()
        self._received = bytearray()
        self._seals: tuple[Seal, Seal] | None = None
        """Of what is sent, and of what is received."""
        self.seal_bytes = 0
        """How long a message's seal is."""

    def protect(self, sent: Seal, received: Seal) -> None:
        """From now on every message is sealed, in both directions."""
        self._seals, self.seal_bytes = (sent, received), SEAL_BYTES

    def send(self, message: Message) -> None:
        """Raises `ConnectionError` when the other end is gone."""
        content = messages.encode(message)
        with self._sending:
            if self._seals is not None:
                content += self._seals[0].next(content)
            self.connection.send([content])

    def read(self, timeout_seconds: float | None = None) -> Iterator[Message]:
        """Waits for something; the messages that are whole by then, of which the first may change
        how the next is read. Raises `ConnectionError` at the end, `BlockingIOError` when the time
        is over, `ProtocolError` for what is no message."""
        view = memoryview(bytearray(1 << 16))
        counts: list[int] = []
        self.connection.receive_into(view, counts, timeout_seconds)
        if not counts[0]:
            raise ConnectionError("the other end has closed the connection")
        self._received += view[: counts[0]]
        while len(self._received) >= messages.LENGTH_SIZE:
            size = messages.length(self._received[: messages.LENGTH_SIZE])
            if size > self.most_bytes:
                raise ProtocolError(f"a message of {size} bytes, by one who has not said who it is")
            end = messages.LENGTH_SIZE + size
            if len(self._received) < end + self.seal_bytes:
                break
            if self._seals is not None:
                seal = self._received[end : end + self.seal_bytes]
                if not hmac.compare_digest(seal, self._seals[1].next(self._received[:end])):
                    raise ProtocolError("a message's seal is broken: somebody on the way wrote it")
            message = messages.decode(self._received[messages.LENGTH_SIZE : end])
            del self._received[: end + self.seal_bytes]
            yield message

    def close(self) -> None:
        self.connection.close()


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
        self._thread = threading.Thread(target=self._run, name=f"rank {rank} orders", daemon=True)
        self.bytes_sent = 0
        line.send(Hello(rank, password.of(rank)))
        seals = password.seals(rank)
        if seals is not None:
            line.protect(*seals)
        self._thread.start()

    def tell(self, message: Message) -> None:
        """Says something to rank 0. If that is gone, the reading thread has seen it too."""
        self.bytes_sent += len(messages.encode(message)) + self._line.seal_bytes
        with contextlib.suppress(ConnectionError):
            self._line.send(message)

    def close(self) -> None:
        self.tell(Leave())
        self._is_closed = True
        self._line.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                for message in self._line.read():
                    self._is_closed |= isinstance(message, Leave)
                    self._hear(message)
        except (ConnectionError, ProtocolError):
            if not self._is_closed:
                self._hear(Lost(self._centre))


class Centre:
    """The end of rank 0, which has the hub."""

    def __init__(
        self,
        hub: Hub,
        transport: Transport,
        listener: Listener,
        hear: Callable[[Message], None],
        password: Password,
        rank: int = 0,
    ) -> None:
        self._rank = rank
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
        self._poller.add(self._listener)
        self._poller.arm(self._listener)
        while True:
            told: list[tuple[int, Message]] = []
            for pollable in self._poller.wait(_PAUSE_SECONDS if self._is_full else None):
                self._look_at(pollable, told)
            if self._is_full:
                self._poller.arm(self._listener)
            while not self._own.empty():
                told.append((self._rank, self._own.get()))
            self._send(self._hub.hear(told))
            if self._is_closed and self._own.empty():
                break
        self._end()

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
        except (ConnectionError, ProtocolError):
            self._hang_up(line)
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

    def _hang_up(self, line: Line) -> None:
        self._poller.remove(line.connection)
        self._strangers.pop(id(line.connection), None)
        rank = self._ranks.get(id(line.connection))
        line.close()
        if rank is not None:
            self._lines.pop(rank, None)
            self._send(self._hub.lost(rank))

    def _send(self, notes: list[Note]) -> None:
        for to, message in notes:
            if to == self._rank:
                self._hear(message)
                continue
            line = self._lines.get(to)
            if line is not None:
                # Who is gone is seen when its connection is read.
                with contextlib.suppress(ConnectionError):
                    line.send(message)

    def _end(self) -> None:
        for line in self._lines.values():
            with contextlib.suppress(ConnectionError):
                line.send(Leave())
        for line in [*self._lines.values(), *self._strangers.values()]:
            line.close()
        self._listener.close()
        self._poller.close()
        self._transport.close()


def call_hub(transport: Transport, address: str, timeout_seconds: float) -> Line:
    """A line to rank 0."""
    try:
        return Line(transport.connect(address, timeout_seconds))
    except (ConnectionError, TimeoutError) as error:
        raise CollectiveError(f"rank 0 cannot be reached at {address}: {error}") from error
