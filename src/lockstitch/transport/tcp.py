"""Streams between machines, over TCP.

TCP proves nothing about the other end: whoever can reach the port may connect, on loopback every
user of the machine. Who may go on is decided above, before anything is parsed.
"""

from __future__ import annotations

import socket

from lockstitch.transport.polling import EpollPoller
from lockstitch.transport.stream import StreamConnection, StreamListener

_SCHEME = "tcp:"
_BACKLOG = 1024


class TcpTransport:
    """Makes TCP streams; addresses are `tcp:host:port`, with IPv6 hosts in brackets.

    `host` is the interface to listen on and the name under which others reach it, loopback if not
    given.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host

    def listen(self, address: str | None = None) -> StreamListener:
        """Listens at `address`, or at a free port of the transport's host.

        Raises `OSError` when the port is taken or the host is not this machine's.
        """
        host, port = (self._host, 0) if address is None else _host_and_port(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        return StreamListener(sock, _address(host, sock.getsockname()[1]), _accepted)

    def connect(self, address: str, timeout_seconds: float) -> StreamConnection:
        """Connects to the listener at `address`.

        Raises `TimeoutError` when the time is over, `ConnectionError` for all that else can fail.
        """
        try:
            sock = socket.create_connection(_host_and_port(address), timeout_seconds)
        except TimeoutError as error:
            message = f"{address} did not answer in {timeout_seconds} s"
            raise TimeoutError(message) from error
        except OSError as error:
            raise ConnectionError(f"cannot connect to {address}: {error}") from error
        # Dialling a free port of one's own host may, by chance, use that very port as its source,
        # and then connects to itself.
        if sock.getsockname() == sock.getpeername():
            sock.close()
            raise ConnectionRefusedError(f"cannot connect to {address}: nobody listens there")
        return _connection(sock, address)

    def poller(self) -> EpollPoller:
        return EpollPoller()

    def close(self) -> None:
        """Nothing remains of a TCP listener."""


class TcpConnection(StreamConnection):
    """A stream on which others than its two ends may have a hand."""

    is_exposed = True


def _accepted(sock: socket.socket) -> StreamConnection:
    host, port, *_ = sock.getpeername()
    return _connection(sock, _address(host, port))


def _connection(sock: socket.socket, peer: str) -> StreamConnection:
    # Messages are sent whole, so waiting to fill a packet would only delay them.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TcpConnection(sock, peer)


def _address(host: str, port: int) -> str:
    return f"{_SCHEME}[{host}]:{port}" if ":" in host else f"{_SCHEME}{host}:{port}"


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix(_SCHEME).rpartition(":")
    if not address.startswith(_SCHEME) or not host or not port.isdecimal():
        raise ValueError(f"not a TCP address: {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
