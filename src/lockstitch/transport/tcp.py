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


class TcpConnection(StreamConnection):
    """A stream on which others than its two ends may have a hand."""

    is_exposed = True


class TcpTransport:
    """Makes TCP streams; addresses are `tcp:host:port`, with IPv6 hosts in brackets.

    `host` is the interface to listen on and the name under which others reach it, loopback if not
    given.
    """

    scheme = _SCHEME

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host

    def listen(self, address: str | None = None) -> StreamListener:
        """Listens at `address`, or at a free port of the transport's host.

        Raises `OSError` when the port is taken or the host is not this machine's.
        """
        host, port = (self._host, 0) if address is None else self._host_and_port(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        return StreamListener(sock, self._address(host, sock.getsockname()[1]), self._accepted)

    def connect(self, address: str, timeout_seconds: float) -> StreamConnection:
        """Connects to the listener at `address`.

        Raises `TimeoutError` when the time is over, `ConnectionError` for all that else can fail.
        """
        try:
            sock = socket.create_connection(self._host_and_port(address), timeout_seconds)
        except TimeoutError as error:
            message = f"{address} did not answer in {timeout_seconds} s"
            raise TimeoutError(message) from error
        except OSError as error:
            raise ConnectionError(f"cannot connect to {address}: {error}") from error
        try:
            # Dialling a free port of one's own host may, by chance, use that very port as its
            # source, and then connects to itself.
            is_own = sock.getsockname() == sock.getpeername()
            _send_at_once(sock)
        except OSError as error:  # who listened may have ended at once
            sock.close()
            raise ConnectionError(f"cannot connect to {address}: {error}") from error
        if is_own:
            sock.close()
            raise ConnectionRefusedError(f"cannot connect to {address}: nobody listens there")
        return self.begin(sock, address, timeout_seconds)

    def begin(
        self,
        sock: socket.socket,
        peer: str,
        timeout_seconds: float | None,
    ) -> StreamConnection:
        """Makes a connection of a socket: of one that has connected, within that time, or of one
        that was accepted (None)."""
        del timeout_seconds
        return TcpConnection(sock, peer)

    def poller(self) -> EpollPoller:
        return EpollPoller()

    def close(self) -> None:
        """Does nothing, since nothing remains of a TCP listener."""

    def _accepted(self, sock: socket.socket) -> StreamConnection:
        host, port, *_ = sock.getpeername()
        _send_at_once(sock)
        return self.begin(sock, self._address(host, port), None)

    def _address(self, host: str, port: int) -> str:
        return f"{self.scheme}[{host}]:{port}" if ":" in host else f"{self.scheme}{host}:{port}"

    def _host_and_port(self, address: str) -> tuple[str, int]:
        host, _, port = address.removeprefix(self.scheme).rpartition(":")
        if not address.startswith(self.scheme) or not host or not port.isdecimal():
            raise ValueError(f"not a {self.scheme[:-1].upper()} address: {address!r}")
        return host.removeprefix("[").removesuffix("]"), int(port)


def _send_at_once(sock: socket.socket) -> None:
    # Messages are sent whole, so waiting to fill a packet would only delay them.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
