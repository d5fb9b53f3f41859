"""Streams between machines, over TCP.

TCP proves nothing about the other end: whoever can reach the port may connect, on loopback every
user of the machine. Who may go on is decided above, before anything is parsed.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

from lockstitch.link.addresses import LOOPBACK, hint, host_and_port, is_loopback, with_port
from lockstitch.link.ports import listen
from lockstitch.transport.polling import EpollPoller
from lockstitch.transport.stream import StreamConnection, StreamListener

_SCHEME = "tcp:"
_BACKLOG = 1024
_NO_WAY: Final = (errno.ENETUNREACH, errno.EHOSTUNREACH)


class TcpConnection(StreamConnection):
    """A stream on which others than its two ends may have a hand."""

    is_exposed = True


class TcpTransport:
    """Makes TCP streams; addresses are `tcp:host:port`, with IPv6 hosts in brackets.

    `host` is the address to listen at, under which others reach it, loopback if not given; `ports`
    are those that may be used, any if not given.
    """

    scheme = _SCHEME

    def __init__(self, host: str = LOOPBACK, ports: range | None = None) -> None:
        self._host = host
        self._ports = ports

    def listen(self, address: str | None = None) -> StreamListener:
        """Listens at `address`, or at a free port of the transport's host.

        Raises `OSError` when the port is taken or the host is not this machine's.
        """
        host, ports = self._host, self._ports
        if address is not None:
            host, port = self._host_and_port(address)
            ports = range(port, port + 1)
        sock = listen(host, ports, _BACKLOG)
        return StreamListener(sock, self._address(host, sock.getsockname()[1]), self._accepted)

    def listen_anywhere(self) -> StreamListener:
        """Listens at any free port of the transport's host, also one that is none of its ports.
        Raises `OSError`."""
        return TcpTransport(self._host).listen()

    def connect(self, address: str, timeout_seconds: float) -> StreamConnection:
        """Connects to the listener at `address`.

        Raises `TimeoutError` when the time is over, `ConnectionError` for all that else can fail.
        """
        host, port = self._host_and_port(address)
        try:
            sock = socket.create_connection((host, port), timeout_seconds)
        except TimeoutError as error:
            message = f"{address} did not answer in {timeout_seconds:g} s; {hint(address)}"
            raise TimeoutError(message) from error
        except OSError as error:
            advice = f"; {hint(address)}" if error.errno in _NO_WAY else ""
            if isinstance(error, ConnectionRefusedError) and not is_loopback(host):
                advice = f"; unless who listened there has ended, {hint(address)}"
            raise ConnectionError(f"cannot connect to {address}: {error}{advice}") from error
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
        return self.scheme + with_port(host, port)

    def _host_and_port(self, address: str) -> tuple[str, int]:
        try:
            if address.startswith(self.scheme):
                return host_and_port(address.removeprefix(self.scheme))
        except ValueError:
            pass
        raise ValueError(f"not a {self.scheme[:-1].upper()} address: {address!r}")


def _send_at_once(sock: socket.socket) -> None:
    # Messages are sent whole, so waiting to fill a packet would only delay them.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
