"""Sockets for those who do without torch, and hence without `transport`: a launcher and its
workers. Addresses are `unix:PATH` or `tcp:HOST:PORT`.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BACKLOG = 128


class SocketStream:
    """A connected socket as a `link.line.Stream`. Where the socket does not block, what the other
    end does not take in at once is an error."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def __repr__(self) -> str:
        return f"<SocketStream · {'closed' if self._socket.fileno() < 0 else 'open'}>"

    def fileno(self) -> int:
        """For a selector; -1 once it is closed."""
        return self._socket.fileno()

    def send(self, buffers: Sequence[bytes]) -> None:
        """See `Stream.send`."""
        self._socket.sendall(b"".join(buffers))

    def receive_into(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None
    ) -> None:
        """See `Stream.receive_into`."""
        if timeout_seconds:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.poll(timeout_seconds * 1000)
        flags = 0 if timeout_seconds is None else socket.MSG_DONTWAIT
        counts.append(self._socket.recv_into(view, 0, flags))

    def close(self) -> None:
        """Ends it on both sides, and wakes who reads here; harmless when repeated."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def abandon(self) -> None:
        """Closes a forked child's copy, leaving the stream to the parent."""
        self._socket.close()


class SocketListener:
    """Listens at `address`; for a selector, so nothing here blocks. Raises `OSError`."""

    def __init__(self, address: str) -> None:
        family, _, where = address.partition(":")
        if family == "unix":
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.address = address
            try:
                self._socket.bind(where)
                self._socket.listen(_BACKLOG)
            except BaseException:
                self._socket.close()
                raise
        else:
            host, _, port = where.rpartition(":")
            self._socket = socket.create_server((host, int(port)), backlog=_BACKLOG)
            self.address = f"tcp:{host}:{self._socket.getsockname()[1]}"
            """With the port that was free, where it was 0."""
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """For a selector; -1 once it is closed."""
        return self._socket.fileno()

    def accept(self) -> SocketStream:
        """One who waits. Raises `OSError`: it has gone again, or no more files can be opened."""
        connection, _ = self._socket.accept()
        connection.setblocking(False)
        return SocketStream(connection)

    def close(self) -> None:
        """Harmless when repeated."""
        self._socket.close()


def connect(address: str, timeout_seconds: float) -> SocketStream:
    """Connects to a listener. Raises `OSError`."""
    family, _, where = address.partition(":")
    if family == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_seconds)
            sock.connect(where)
        except BaseException:
            sock.close()
            raise
    else:
        host, _, port = where.rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout_seconds)
    sock.setblocking(True)
    return SocketStream(sock)
