"""Streams between machines that nobody on the way can read or change: TLS over TCP.

TLS works on memory here (`ssl.MemoryBIO`), and the sockets are used as by any other stream. So a
sender and a receiver meet only for as long as a record is sealed or opened, never while one of them
waits. The greeting of TLS is part of the first receiving on the side that was called: whoever reads
there, reads for many and must not wait for one.

What has been taken from the socket may hold more than a receiver has asked for. It says so by
`has_left_over`, since no poller can know.
"""

from __future__ import annotations

import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

from lockstitch.errors import HandshakeError
from lockstitch.link.addresses import LOOPBACK
from lockstitch.transport.base import SendTimeoutError
from lockstitch.transport.stream import (
    StreamConnection,
    as_connection_error,
    set_timeout,
    size_of,
)
from lockstitch.transport.tcp import TcpTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.transport.base import Buffer, RemainingTime
    from lockstitch.trust.tls import TlsContexts

_CHUNK = 1 << 18
_RECEIVED_AT_ONCE = (1 << 18,)
_DONT_WAIT = (socket.MSG_DONTWAIT,)
_WAIT = (0,)


class TlsConnection(StreamConnection):
    """A stream inside TLS."""

    def __init__(self, sock: socket.socket, peer: str, context: ssl.SSLContext) -> None:
        super().__init__(sock, peer)
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        is_called = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=is_called)
        # In C, so that no interrupt comes between the reading of bytes and the noting of it.
        self._read: Any = self._tls._sslobj.read  # type: ignore[attr-defined]
        self._using_tls = threading.Lock()
        self._is_greeted = False
        self._may_hold_more = False
        self._timeout: float | None = None
        self._unsealed: list[memoryview] = []
        """What of a message that has begun to leave is still to be sealed."""

    def has_left_over(self) -> bool:
        """See `Connection.has_left_over`."""
        return self._may_hold_more

    def greet(self, timeout_seconds: float) -> None:
        """The greeting of TLS, for the side that has connected. Raises `TimeoutError` and
        `ConnectionError`."""
        try:
            while not self._is_greeted:
                if not self._step_of_greeting():
                    self._take_from_socket(timeout_seconds)
        except BlockingIOError as error:
            raise TimeoutError(f"{self.peer} did not speak TLS in {timeout_seconds} s") from error
        except OSError as error:
            raise ConnectionError(f"cannot speak TLS with {self.peer}: {error}") from error

    def _step_of_greeting(self) -> bool:
        """Goes as far as possible; False: more has to come first."""
        try:
            self._tls.do_handshake()
            self._is_greeted = True
            self._may_hold_more = True
        except ssl.SSLWantReadError:
            pass
        finally:
            said = self._leaving.read()
            if said:
                super().send([said])
        return self._is_greeted

    def receive_into(
        self, view: memoryview, counts: list[int], timeout_seconds: float | None
    ) -> None:
        """Waits for bytes; see `Connection.receive_into`."""
        self._receiving = True
        try:
            while not self._closed:
                if self._open_records(view, counts):
                    return
                self._take_from_socket(timeout_seconds)
            counts.append(0)
        except (BlockingIOError, ConnectionError):
            raise
        except ssl.SSLError as error:
            if not self._is_greeted:
                raise HandshakeError(
                    f"{self.peer} does not speak TLS as we do ({error.reason or error}): all "
                    "workers need tls=True, and certificates of the same secret or authority",
                    "no TLS",
                ) from error
            raise ConnectionError(f"TLS with {self.peer} failed: {error}") from error
        except OSError as error:
            raise as_connection_error(error, self.peer) from error
        finally:
            self._receiving = False
            if self._closed:
                self._leave()

    def _open_records(self, view: memoryview, counts: list[int]) -> bool:
        """Receives of what is there already; False if that is nothing."""
        if not self._is_greeted and not self._step_of_greeting():
            return False
        try:
            with self._using_tls:
                self._may_hold_more = True  # before reading: an interrupt may follow it
                counts.extend(map(self._read, (len(view),), (view,)))
        except ssl.SSLWantReadError:
            self._may_hold_more = False
            return False
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            counts.append(0)
        return True

    def _take_from_socket(self, timeout_seconds: float | None) -> None:
        flags = _DONT_WAIT if timeout_seconds == 0 else _WAIT
        if flags is _WAIT and timeout_seconds != self._timeout:
            set_timeout(self._socket, socket.SO_RCVTIMEO, timeout_seconds)
            self._timeout = timeout_seconds
        # Receiving and keeping are one C call; see `stream`.
        taken: list[int] = []
        taken.extend(map(self._arrived.write, map(self._socket.recv, _RECEIVED_AT_ONCE, flags)))
        if not taken[0]:
            self._arrived.write_eof()

    def _has_unseen(self) -> bool:
        return self._may_hold_more

    def send(
        self,
        buffers: Sequence[Buffer],
        sent: list[int] | None = None,
        *,
        remaining_time: RemainingTime | None = None,
    ) -> None:
        """Sends all of `buffers`; see `Connection.send`. An interrupt in the middle closes the
        connection: what has been sealed can be sent in one order only."""
        del sent
        is_begun = False
        try:
            self._send_unsealed(remaining_time)
            is_begun = True
            is_small = sum(map(size_of, buffers)) <= _CHUNK
            parts = [b"".join(buffers)] if is_small else buffers
            self._unsealed = [memoryview(part).cast("B") for part in parts]
            self._send_unsealed(remaining_time)
        except SendTimeoutError as error:
            error.is_begun = is_begun
            if is_begun:  # from now on these bytes are nobody's but ours
                self._unsealed = [memoryview(b"".join(self._unsealed))]
            raise
        except BaseException as error:
            self.close()
            if isinstance(error, ssl.SSLError):
                raise ConnectionError(f"TLS with {self.peer} failed: {error}") from error
            raise

    def _send_unsealed(self, remaining_time: RemainingTime | None) -> None:
        super().send([], remaining_time=remaining_time)
        while self._unsealed:
            part = self._unsealed[0]
            if not part:
                del self._unsealed[0]
                continue
            with self._using_tls:
                self._tls.write(part[:_CHUNK])
                sealed = self._leaving.read()
            self._unsealed[0] = part[_CHUNK:]
            try:
                super().send([sealed], remaining_time=remaining_time)
            except SendTimeoutError as error:
                if not error.is_begun:
                    self._left_over = sealed, []
                raise


class TlsTransport(TcpTransport):
    """Makes TLS streams; addresses are `tls:host:port`."""

    scheme = "tls:"

    def __init__(
        self, contexts: TlsContexts, host: str = LOOPBACK, ports: range | None = None
    ) -> None:
        super().__init__(host, ports)
        self._contexts = contexts

    def begin(self, sock: socket.socket, peer: str, timeout_seconds: float | None) -> TlsConnection:
        if timeout_seconds is None:
            return TlsConnection(sock, peer, self._contexts.listening)
        connection = TlsConnection(sock, peer, self._contexts.calling)
        try:
            connection.greet(timeout_seconds)
        except BaseException:
            connection.close()
            raise
        return connection
