"""Streams between the processes of one user on one machine, over unix sockets.

Nobody else may talk to a worker, since a worker runs what it is told to: the socket lies in a fresh
directory that only its user may enter, and each end asks the kernel who the other one is.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
from pathlib import Path

from lockstitch.transport.polling import EpollPoller
from lockstitch.transport.stream import StreamConnection, StreamListener, set_timeout

_SCHEME = "unix:"
_BACKLOG = 1024
# Half of it is the kernel's own bookkeeping; memory is only taken while bytes are on their way.
_SEND_BUFFER_BYTES = 1 << 20
_LONGEST_PATH = 107


class UnixTransport:
    """Makes unix-socket streams; addresses are `unix:/path`."""

    def __init__(self) -> None:
        self._directories: list[Path] = []
        self._process = os.getpid()

    def listen(self, address: str | None = None) -> StreamListener:
        """Listens at `address`, or in a fresh directory (mode 0700); the socket has mode 0600.

        Raises `OSError` when the address is taken or its path too long (107 bytes).
        """
        path = self._fresh_path() if address is None else _path_of(address)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(path)
            os.chmod(path, 0o600)
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
        return StreamListener(sock, _SCHEME + path, _accepted)

    def connect(self, address: str, timeout_seconds: float) -> StreamConnection:
        """Connects to the listener at `address`; waits while its backlog is full.

        Raises `ConnectionError` when nobody listens there or the listener is another user's,
        `TimeoutError` when the time is over.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(True)
            # Waiting for room in the backlog counts as sending.
            set_timeout(sock, socket.SO_SNDTIMEO, timeout_seconds)
            sock.connect(_path_of(address))
            set_timeout(sock, socket.SO_SNDTIMEO, None)
            return _connection(sock, address)
        except BlockingIOError as error:
            sock.close()
            raise TimeoutError(f"{address} did not answer in {timeout_seconds} s") from error
        except OSError as error:
            sock.close()
            raise ConnectionError(f"cannot connect to {address}: {error}") from error
        except BaseException:
            sock.close()
            raise

    def poller(self) -> EpollPoller:
        return EpollPoller()

    def close(self) -> None:
        """Removes the sockets' directories, unless this is a forked child."""
        if self._process == os.getpid():
            while self._directories:
                shutil.rmtree(self._directories.pop(), ignore_errors=True)

    def _fresh_path(self) -> str:
        directory = Path(tempfile.mkdtemp(prefix="lockstitch-"))
        if len(os.fsencode(directory / "socket")) > _LONGEST_PATH:
            directory.rmdir()
            directory = Path(tempfile.mkdtemp(prefix="lockstitch-", dir="/tmp"))
        self._directories.append(directory)
        return str(directory / "socket")


def _path_of(address: str) -> str:
    if not address.startswith(_SCHEME):
        raise ValueError(f"not a unix address: {address!r}")
    return address.removeprefix(_SCHEME)


def _accepted(sock: socket.socket) -> StreamConnection:
    return _connection(sock, None)


def _connection(sock: socket.socket, address: str | None) -> StreamConnection:
    """Wraps a connected socket, or raises `PermissionError` when its other end is a stranger's."""
    process, user = _credentials(sock)
    if user != os.geteuid():
        raise PermissionError(f"the other end belongs to user {user}, not to {os.geteuid()}")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    peer = address or f"{_SCHEME}process {process}"
    return StreamConnection(sock, peer, is_own_process=process == os.getpid())


def _credentials(sock: socket.socket) -> tuple[int, int]:
    """Process id and user id of the other end, as the kernel recorded them."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _group = struct.unpack("3i", raw)
    return process, user
