"""A connection between rank 0 and another: whole messages, by somebody who belongs here.

A rank proves with its first message that it does. Where the job has a secret, every message after
that ends with a *seal*: a keyed hash of the message and its number, by a key of its own for each
session, rank and direction. So what somebody on the way has changed, left out, repeated or put in
ends the connection before it is parsed. Seals hide nothing: names and shapes can be read.
"""

from __future__ import annotations

import hmac
import threading
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from lockstitch.collectives.c10d import messages
from lockstitch.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.collectives.c10d.messages import Message
    from lockstitch.transport import Connection
    from lockstitch.trust import Secret

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
