"""Sockets for those who do without torch, and hence without `transport`: a launcher and its
workers. Addresses are `unix:PATH` or `tcp:HOST:PORT`. Also what is asked of the kernel about
sockets: to keep a port, and who is at the other end.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_BACKLOG = 128
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid


class SocketStream:
    """A connected socket as a `link.line.Stream`. Where the socket does not block, what the other
    end does not take in at once is an error."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def __repr__(self) -> str:
        return f"<SocketStream · {'closed' if self._socket.fileno() < 0 else 'open'}>"

    def fileno(self) -> int:
        """Returns the descriptor, for a selector; -1 once it is closed."""
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
        """Returns the descriptor, for a selector; -1 once it is closed."""
        return self._socket.fileno()

    def accept(self) -> SocketStream:
        """Returns the connection of one who waits, which does not block. Raises `OSError` where it
        has gone again, or no more files can be opened."""
        connection, _ = self._socket.accept()
        connection.setblocking(False)
        return SocketStream(connection)

    def close(self) -> None:
        """Ends listening; harmless when repeated."""
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


class HeldPort:
    """A free TCP port that the kernel gives to nobody else as long as it is held, although nothing
    listens there yet: whoever asks for the address to be reusable, as all servers do, still can.

    `host` is the address of this machine at which the port is held; by default all of them. A
    context manager. Raises `OSError`."""

    def __init__(self, host: str = "") -> None:
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, 0))
        except BaseException:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def __repr__(self) -> str:
        return f"<HeldPort {self.number}{' · closed' if self._socket.fileno() < 0 else ''}>"

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the port back; harmless when repeated."""
        self._socket.close()


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """Returns the ids of the process and of the user at the other end of a unix socket, as the
    kernel recorded them when it was connected. Raises `OSError`."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _group = _CREDENTIALS.unpack(raw)
    return process, user


def peer_process(descriptor: int) -> int:
    """Returns the id of the process at the other end of the unix socket with that descriptor, which
    stays open. Raises `OSError` where it is no such socket."""
    copy = os.dup(descriptor)
    try:
        sock = socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise
    with sock:
        return peer_credentials(sock)[0]
