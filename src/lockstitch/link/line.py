"""A connection between two who share a secret: a handshake, then whole records, each with a MAC.

    ┌ u32 length ┬ record ┬ MAC, 16 bytes ┐

A record of no bytes is a ping: it says that the sender lives (`link.pulse`), and nobody gets it.

A MAC covers the record, its length and its number, by a key that only this connection has, one
for each direction. What somebody on the way has changed, left out, repeated or put in ends the
connection before it is parsed. So does anything that fails while a record is sent, Ctrl-C too,
since nobody could say what has left by then; but what the other end has said before that is still
read: it may tell why it is gone.

Workers begin by the same handshake, but send frames then, not records (`wire.authentication`).
"""

from __future__ import annotations

import contextlib
import hmac
import struct
import threading
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import HandshakeError, RemoteProtocolError
from lockstitch.link.authentication import MAC_BYTES, mac_of
from lockstitch.link.greetings import GreetingReader
from lockstitch.link.handshake import CallerHandshake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstitch.clock import Clock
    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.link.greetings import Welcome
    from lockstitch.link.handshake import SessionKeys
    from lockstitch.link.pulse import Pulse
    from lockstitch.trust import Secret

_LENGTH: Final = struct.Struct("<I")
_LOOK_SECONDS: Final = 0.5
_NO_VERSIONS: Final = ("", "")
"""Of Python and torch: records do not depend on them."""


class Stream(Protocol):
    """What a line goes over: a `Connection` of `transport`, or a socket (`link.sockets`)."""

    def send(self, buffers: Sequence[bytes]) -> None:
        """Sends all of it; raises `OSError`."""
        ...

    def receive_into(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None
    ) -> None:
        """Appends how many bytes it has received, 0 at the end. Raises `OSError`, and of that
        `BlockingIOError` where nothing came in time; None waits for ever, 0 not at all."""
        ...

    def signs_of_life(self) -> tuple[int, ...]:
        """What can be seen of the other end without its answering: see `Connection`."""
        ...

    def bound_silence(self, seconds: float) -> None:
        """Has the system end the connection, on which then everything fails, when the other end's
        host has taken in nothing for so long that was sent."""
        ...

    def end_sending(self) -> None:
        """Sends no more, which the other end sees; what that has sent can still be received."""
        ...

    def close(self) -> None:
        """Ends it on both sides; harmless when repeated."""
        ...


S = TypeVar("S", bound=Stream)


class Line(Generic[S]):
    """The records of one connection, of at most `most_bytes`. One thread reads; any may send.
    Without `keys` they have no MACs."""

    def __init__(self, stream: S, keys: SessionKeys | None, most_bytes: int) -> None:
        self.stream = stream
        self._keys = keys
        self._mac_bytes = 0 if keys is None else MAC_BYTES
        self._most_bytes = most_bytes
        self._sending = threading.Lock()
        self._sent = self._read = 0
        self._received = bytearray()
        self.heard = 0
        """How often something has come."""
        self._failure: OSError | None = None
        """Of a send."""

    def ping(self) -> None:
        """Says that this end lives. Where the other end is gone, that is for who reads to see."""
        with contextlib.suppress(OSError):
            self.send(b"")

    def signs_of_life(self) -> tuple[int, ...]:
        """See `Stream.signs_of_life`."""
        return self.stream.signs_of_life()

    def bound_silence(self, seconds: float) -> None:
        """See `Stream.bound_silence`."""
        self.stream.bound_silence(seconds)

    def send(self, record: bytes) -> int:
        """Sends a record, and returns how many bytes that took. Raises `OSError` where the other
        end is gone; who reads hears of it, too, after all that has come from there."""
        content = _LENGTH.pack(len(record)) + record
        with self._sending:
            try:
                if self._keys is not None:
                    content += mac_of(self._keys.outgoing, self._sent, content)
                    self._sent += 1
                self.stream.send([content])
            except BaseException as error:
                if isinstance(error, OSError):
                    self._failure = self._failure or error
                self.stream.end_sending()
                raise
        return len(content)

    def read(self, timeout_seconds: float | None = None) -> Iterator[bytes]:
        """Waits for something; the records that are whole by then. Raises `ConnectionError` at the
        end, `BlockingIOError` when the time is over, `RemoteProtocolError` for what the other end
        has not sent: the line is to be closed then."""
        view = memoryview(bytearray(1 << 16))
        counts: list[int] = []
        self.stream.receive_into(view, counts, timeout_seconds)
        if not counts[0]:
            raise ConnectionError(str(self._failure or "the other end has closed the connection"))
        self.heard += 1
        self._received += view[: counts[0]]
        while len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if size > self._most_bytes:
                raise RemoteProtocolError(f"a record of {size} bytes, where none can be")
            end = _LENGTH.size + size
            if len(self._received) < end + self._mac_bytes:
                break
            if self._keys is not None:
                self._check(self._keys.incoming, end)
            record = bytes(self._received[_LENGTH.size : end])
            del self._received[: end + self._mac_bytes]
            if record:
                yield record

    def listen(self, pulse: Pulse) -> Iterator[bytes]:
        """Waits for something, without an end, with the other end in the care of `pulse`; the
        records that are whole by then, perhaps none. Raises `ConnectionError` where that is lost,
        and what `read` raises."""
        for _, why in pulse.pass_time():
            raise why
        # Nothing was there, as may be told of a wait without an end, too.
        with contextlib.suppress(BlockingIOError):
            yield from self.read(pulse.seconds_to_next())

    def _check(self, key: bytes, end: int) -> None:
        """Raises `RemoteProtocolError` unless the first record, which ends there, has its MAC."""
        claimed = self._received[end : end + MAC_BYTES]
        if not hmac.compare_digest(claimed, mac_of(key, self._read, self._received[:end])):
            raise RemoteProtocolError(
                "a record's seal is broken: somebody on the way has written or changed it"
            )
        self._read += 1

    def close(self) -> None:
        """Ends it; harmless when repeated."""
        self.stream.close()


def exchange(
    handshake: CallerHandshake,
    send: Callable[[bytes], object],
    receive_into: Callable[[memoryview], int],
) -> Welcome:
    """Says and hears all greetings of a caller; returns the last. Raises `ConnectionError` and
    `HandshakeError`, beside what the two functions raise."""
    reader = GreetingReader()
    send(handshake.opening)
    while handshake.welcome is None:
        count = receive_into(reader.space())
        if not count:
            raise ConnectionResetError("it closed the connection before any greeting")
        greeting = reader.absorb(count)
        answer = b"" if greeting is None else handshake.take(greeting)
        if answer:
            send(answer)
    return handshake.welcome


def call(  # noqa: PLR0913 - all that it works with
    stream: S,
    me: WorkerInfo,
    peer: WorkerId,
    secret: Secret,
    most_bytes: int,
    *,
    timeout_seconds: float,
    is_authenticated: bool = True,
    look: Callable[[], object] = lambda: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Line[S]:
    """Greets whoever listens at the other end of `stream`, and closes it where that fails.

    Raises `ConnectionError` and `TimeoutError`, `HandshakeError` where the other end is a stranger
    does not let `me` in, and what `look` raises, which is called now and then meanwhile.
    """
    handshake = CallerHandshake(me, peer, _NO_VERSIONS, secret)
    deadline = clock.now() + timeout_seconds

    def receive_into(view: memoryview) -> int:
        counts: list[int] = []
        while not counts:
            left = deadline - clock.now()
            if left <= 0:
                raise TimeoutError(f"no greeting came within {timeout_seconds:g} s")
            try:
                stream.receive_into(view, counts, min(left, _LOOK_SECONDS))
            except BlockingIOError:
                look()
        return counts[0]

    try:
        welcome = exchange(handshake, lambda data: stream.send([data]), receive_into)
        if welcome.refusal:
            raise HandshakeError(welcome.refusal)
        return Line(stream, handshake.keys if is_authenticated else None, most_bytes)
    except BaseException:
        stream.close()
        raise
