"""Sockets for those who do without torch, and hence without `transport`: a launcher and its
workers. Addresses are `unix:PATH` or `tcp:HOST:PORT`. Also what is asked of the kernel about
sockets: to keep a port, and who is at the other end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockstitch.link.addresses import host_and_port, with_port
from lockstitch.link.ports import listen

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""What keeps this process from connecting or accepting, and says nothing of the other end."""
_BACKLOG = 4096
_OPEN: Final = "/proc/self/fd"
_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid
# The beginning of Linux' `struct tcp_info`: state, probes that nobody has answered, packets that
# nobody has acknowledged, how many ms ago the last acknowledgement came.
_TCP_INFO: Final = struct.Struct("B2xB4x16xI28xI")
_CONNECTING: Final = 2
_CONNECTING_TRIES: Final = 4


class SocketStream:
    """A connected socket as a `link.line.Stream`. Where the socket does not block, it is an error
    if the other end takes in nothing for `patience_seconds` of what is sent."""

    def __init__(self, sock: socket.socket) -> None:
        self.patience_seconds = 0.0
        self._socket = sock
        self._process = peer_credentials(sock)[0] if sock.family == socket.AF_UNIX else None

    def __repr__(self) -> str:
        return f"<SocketStream · {'closed' if self._socket.fileno() < 0 else 'open'}>"

    def fileno(self) -> int:
        """Returns the descriptor, for a selector; -1 once it is closed."""
        return self._socket.fileno()

    def send(self, buffers: Sequence[bytes]) -> None:
        """See `Stream.send`."""
        rest = memoryview(b"".join(buffers))
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                if not (
                    self.patience_seconds and self._wait(select.POLLOUT, self.patience_seconds)
                ):
                    raise

    def receive_into(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None
    ) -> None:
        """See `Stream.receive_into`."""
        if timeout_seconds:
            self._wait(select.POLLIN, timeout_seconds)
        flags = 0 if timeout_seconds is None else socket.MSG_DONTWAIT
        counts.append(self._socket.recv_into(view, 0, flags))

    def _wait(self, event: int, timeout_seconds: float) -> bool:
        """Waits for what `select.poll` calls so; returns False when the time is over."""
        poll = select.poll()
        try:
            poll.register(self._socket, event)
        except ValueError as error:  # by another thread
            raise ConnectionAbortedError("the connection has been closed") from error
        return bool(poll.poll(timeout_seconds * 1000))

    def own_host(self) -> str:
        """Returns the address of this host on the way to the other end."""
        return str(self._socket.getsockname()[0])

    def signs_of_life(self) -> tuple[int, ...]:
        """The CPU time of the process at the other end, where it is of this host: it may be busy
        where it cannot answer, but a stopped process uses none."""
        if self._process is None:
            return ()
        return (cpu_ticks(self._process),)

    def bound_silence(self, seconds: float) -> None:
        """See `Stream.bound_silence`."""
        bound_silence(self._socket, seconds)

    def end_sending(self) -> None:
        """See `Stream.end_sending`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends it on both sides, and wakes who reads here; harmless when repeated."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def abandon(self) -> None:
        """Closes a forked child's copy, leaving the stream to the parent."""
        self._socket.close()


class SocketListener:
    """Listens at `address`, for port 0 at one of `ports` that is free, or at any; for a selector,
    so nothing here blocks. `fd:7`: a socket for TCP that listens already, by its descriptor, which
    is this one's from now on. Raises `OSError`."""

    def __init__(self, address: str, ports: range | None = None) -> None:
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
        elif family == "fd":
            self._socket = socket.socket(fileno=int(where))
            self.address = f"tcp:{with_port(*self._socket.getsockname()[:2])}"
        else:
            host, port = host_and_port(where)
            wanted = range(port, port + 1) if port else ports
            self._socket = listen(host, wanted, _BACKLOG)
            self.address = f"tcp:{with_port(host, self._socket.getsockname()[1])}"
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
        sock = socket.create_connection(host_and_port(where), timeout_seconds)
    sock.setblocking(True)
    return SocketStream(sock)


class HeldPort:
    """A free TCP port that the kernel gives to nobody else as long as it is held, although nothing
    listens there yet: whoever asks for the address to be reusable, as all servers do, still can.

    `host` is the address of this machine at which the port is held; by default all of them. `ports`
    are those that may be used: the last that is free, since listeners take the first; by default
    any. A context manager. Raises `OSError`."""

    def __init__(self, host: str = "", ports: range | None = None) -> None:
        for port in reversed(ports or range(1)):
            self._socket = socket.socket()
            try:
                self._socket.bind((host, port))
                # Only now: two holders shall not have the same.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                break
            except BaseException as error:
                self._socket.close()
                is_last = ports is None or port == ports[0]
                if is_last or not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
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
    with _copy_of(descriptor) as sock:
        return peer_credentials(sock)[0]


def _copy_of(descriptor: int) -> socket.socket:
    """A socket of its own, to ask things of, for one that stays open as it is: by any other type
    Python would have both not block, where the program has set a default timeout. Raises `OSError`
    where it is none."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=copy)
    except BaseException:
        os.close(copy)
        raise


def bound_silence(sock: socket.socket, seconds: float) -> None:
    """Has the system end a connection over TCP when the other host has acknowledged nothing for so
    long, sent bytes or probes of the system's own; does nothing where it cannot, or for another
    kind of socket. It counts as silence, too, that the other end reads nothing."""
    probe_silence(sock, seconds)
    _set_tcp(sock, TCP_USER_TIMEOUT=max(1, round(seconds * 1000)))


def probe_silence(sock: socket.socket, seconds: float) -> None:
    """Has the system ask the other host of a connection over TCP, several times within so long, if
    it is there, while nothing else is on its way; likewise."""
    part = max(1, round(seconds / 5))
    with contextlib.suppress(OSError):  # it has been closed
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _set_tcp(sock, TCP_KEEPIDLE=part, TCP_KEEPINTVL=part)


def _set_tcp(sock: socket.socket, **options: int) -> None:
    if sock.family not in _INTERNET:
        return
    with contextlib.suppress(OSError):
        for name, value in options.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def seconds_unacknowledged(sock: socket.socket) -> float:
    """Returns for how long nothing has come from the other host of a connection over TCP, no
    acknowledgement either; 0 where it owes none, or the system does not tell. A program that takes
    in nothing is asked again and again whether there is room, but ever more rarely: one question
    may still be on its way, the second is not asked before the first should have been answered."""
    _, probes, unacknowledged, silent = _tcp_info(sock)
    return silent / 1000 if unacknowledged or probes > 1 else 0.0


def _tcp_info(sock: socket.socket) -> tuple[int, int, int, int]:
    """What the system tells of a connection, see `_TCP_INFO`; zeros where it does not."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        state, probes, unacknowledged, silent = _TCP_INFO.unpack(told)
    except (AttributeError, OSError, struct.error):  # another system, or another kind of socket
        return 0, 0, 0, 0
    return state, probes, unacknowledged, silent


@contextlib.contextmanager
def silence_bounded(seconds: float) -> Iterator[Callable[[], None]]:
    """A context manager after which `bound_silence` holds for all connections over TCP that this
    process has got within, those that are still being made too: for a library that opens some and
    says nothing of them. 0: for none. Within, it holds for those that there are when the function
    is called that it gives; who is called then and does not answer is given up sooner, for Gloo
    calls four times."""
    before = _open_sockets() if seconds else set()

    def bound() -> None:
        for descriptor, _ in _open_sockets() - before if seconds else ():
            with (
                contextlib.suppress(OSError),  # it has been closed, and may be a file's by now
                _copy_of(descriptor) as sock,
            ):
                if not _listens(sock):
                    state, *_ = _tcp_info(sock)
                    tries = _CONNECTING_TRIES if state == _CONNECTING else 1
                    bound_silence(sock, seconds / tries)

    yield bound
    bound()


def listeners(host: str) -> set[tuple[str, int]]:
    """Returns where this process listens to TCP at an address of this host."""
    found = set()
    for sock in _sockets_of_tcp():
        if _listens(sock) and sock.getsockname()[0] == host:
            found.add(sock.getsockname()[:2])
    return found


def end_connections(at: Container[tuple[str, int]]) -> None:
    """Ends all connections of this process over TCP one end of which is where somebody listens:
    for those of a library that says nothing of them, and waits for the other end."""
    for sock in _sockets_of_tcp():
        with contextlib.suppress(OSError):  # it is connected to nobody
            if not _listens(sock) and (
                sock.getsockname()[:2] in at or sock.getpeername()[:2] in at
            ):
                sock.shutdown(socket.SHUT_RDWR)


def _sockets_of_tcp() -> Iterator[socket.socket]:
    """Copies of all that are open, each until the next is taken."""
    for descriptor, _ in _open_sockets():
        with contextlib.suppress(OSError), _copy_of(descriptor) as sock:  # it has been closed
            kind = sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
            if sock.family in _INTERNET and kind == socket.SOCK_STREAM:
                yield sock


def _listens(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _open_sockets() -> set[tuple[int, str]]:
    """The descriptors of sockets, and which sockets these are; none where the system does not
    tell."""
    found: set[tuple[int, str]] = set()
    try:
        names = os.listdir(_OPEN)  # a third of the time that Path takes: there may be thousands
    except OSError:
        return found
    for name in names:
        with contextlib.suppress(OSError):
            target = os.readlink(f"{_OPEN}/{name}")
            if target.startswith("socket:"):
                found.add((int(name), target))
    return found


def cpu_ticks(process: int) -> int:
    """Returns the CPU time of a process, in ticks of the kernel; 0 where it cannot be seen."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it is gone, or in a namespace of its own
        return 0
    return int(fields[11]) + int(fields[12])
