"""Reading streams in tests."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from lockstitch.transport.stream import StreamConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.transport.base import Connection, Listener, Transport


def receive_some(
    connection: Connection, most: int = 1 << 16, timeout_seconds: float | None = None
) -> bytes:
    """What one receive brings; empty at the end of the stream."""
    counts: list[int] = []
    view = memoryview(bytearray(most))
    connection.receive_into(view, counts, timeout_seconds)
    (count,) = counts
    return bytes(view[:count])


def receive_all(connection: Connection, count: int) -> bytes:
    """Exactly `count` bytes, or fewer when the stream ends."""
    received = b""
    while len(received) < count and (some := receive_some(connection, count - len(received))):
        received += some
    return received


def wait_for_connection(listener: Listener) -> Connection:
    """The next connection that somebody has already dialled."""
    while (connection := listener.accept()) is None:
        pass
    return connection


@contextlib.contextmanager
def connected(transport: Transport) -> Iterator[tuple[Connection, Connection]]:
    """The dialling and the accepting end of a connection."""
    listener = transport.listen()
    near = transport.connect(listener.address, 1.0)
    far = wait_for_connection(listener)
    try:
        yield near, far
    finally:
        for end in (near, far, listener):
            end.close()


@contextlib.contextmanager
def socket_pair() -> Iterator[tuple[StreamConnection, StreamConnection]]:
    """The two ends of a connection over a pair of sockets."""
    left, right = socket.socketpair()
    near, far = StreamConnection(left, "far"), StreamConnection(right, "near")
    try:
        yield near, far
    finally:
        near.close()
        far.close()
